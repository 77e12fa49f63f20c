"""The data type that a language model on a CPU is loaded in, unless its user chooses one."""

import torch
from transformers import AutoConfig

from c2t.kernels.decoder_layers import bf16_is_faster
from c2t.models.target.families import FAMILIES


def default_dtype(source: str, trust_remote_code: bool = False) -> torch.dtype:
    """Return bf16 for a model whose family c2t's kernels run and whose config says so, if they are faster in it than in
    float32 on this processor; float32 for all others, quantised ones among them."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    quantised = getattr(config, "quantization_config", None) is not None
    stored = config.model_type in FAMILIES and config.dtype == torch.bfloat16 and not quantised
    return torch.bfloat16 if stored and bf16_is_faster() else torch.float32


def has_bf16() -> bool:
    """Return True where torch's matrix products in bf16 run by instructions of this machine's processor."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()
