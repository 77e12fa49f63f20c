"""The data type that a language model on a CPU is loaded in, unless its user chooses one."""

import torch
from transformers import AutoConfig

from c2t.kernels.decoder_layers import bf16_is_faster
from c2t.models.target.families import FAMILIES


def default_dtype(source: str, trust_remote_code: bool = False) -> torch.dtype:
    """Return bf16 for a model whose family c2t's kernels run and whose config says so, if they are faster in it than in
    float32 on this processor; float32 for all others, quantised ones among them."""
    return torch.bfloat16 if bf16_is_faster() and is_bf16(source, trust_remote_code) else torch.float32


def is_bf16(source: str, trust_remote_code: bool = False) -> bool:
    """Return True for a model whose family c2t's kernels run, and whose config says that it is stored in bf16."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    quantised = getattr(config, "quantization_config", None) is not None
    return config.model_type in FAMILIES and config.dtype == torch.bfloat16 and not quantised


def has_bf16() -> bool:
    """Return True where torch's matrix products in bf16 run by instructions of this machine's processor."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()
