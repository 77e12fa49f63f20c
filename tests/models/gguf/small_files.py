"""Small GGUF files of random models, written as llama.cpp's own converter writes them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.toys import language_model

SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "gemma3": Gemma3TextConfig(**SIZES, **KINDS, head_dim=16, query_pre_attn_scalar=16),
    "phi3": Phi3Config(**SIZES, sliding_window=None),
}
# Of dimensions that the kernels run, and whose inputs are whole blocks.
WIDE = LlamaConfig(**SIZES | {"intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1})
ARCHITECTURES = {"mistral": "llama", "wide": "llama"}
# Part of a tensor's name -> type of its blocks, as llama.cpp mixes them.
MIXED = {"attn_v": "Q8_0", "token_embd": "Q5_0", "output.": "Q8_0", "ffn_down": "Q4_0", "": "Q4_1"}
MAPPED = {"gemma3_text": "gemma3", "mistral": "llama"}


def tokens() -> list[str]:
    """Control tokens, then all bytes, and a few merges."""
    spelling = bytes_to_unicode()
    return ["<unk>", "<s>", "</s>", *(spelling[byte] for byte in range(256)), "th", "he", "the", "Ġthe"]


def write(path: Path, name: str, seed: int = 0, types: dict[str, str] | None = None, **changes: Any) -> PreTrainedModel:
    """Write a random model of a family in float32, and return it in the same type. types: of the blocks of matrices, as
    MIXED. changes: entries of the file to replace; None leaves one out."""
    config = CONFIGS.get(name, WIDE)
    model = language_model(config, seed).float()
    arch = ARCHITECTURES.get(name, name)
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (entries(config, arch) | changes).items():
        if value is None:
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        base, _, ending = key.rpartition(".")
        tensor, numbers = f"{names.get_name(base)}.{ending}", stored(key, weight, config, arch).numpy()
        if types and numbers.ndim > 1:
            kind = gguf.GGMLQuantizationType[next(types[part] for part in types if part in tensor)]
            writer.add_tensor(tensor, gguf.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def stored(key: str, weight: Tensor, config: PreTrainedConfig, arch: str) -> Tensor:
    """A weight as the converter stores it: Llama's queries and keys turn neighbours, Gemma's norms are 1 more."""
    if arch == "llama" and ("q_proj" in key or "k_proj" in key):
        heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
        return weight.view(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape).contiguous()
    if arch == "gemma3" and key.endswith("norm.weight"):
        return weight + 1
    return weight


def entries(config: PreTrainedConfig, arch: str) -> dict[str, Any]:
    """The file's entries about the model and its tokenizer."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    texts = tokens() + [f"<{number}>" for number in range(config.vocab_size - len(tokens()))]
    sliding = getattr(config, "layer_types", None) if arch == "gemma3" else None
    ropes = config.rope_parameters
    of_model = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float((ropes["full_attention"] if sliding else ropes)["rope_theta"]),
        "rope.dimension_count": dim if arch in ("llama", "phi3") else None,
    }
    if sliding:
        of_model["attention.sliding_window"] = config.sliding_window
        of_model["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in sliding]
    return {f"{arch}.{key}": value for key, value in of_model.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(texts) - 3),
        "tokenizer.ggml.merges": ["t h", "h e", "th e", "Ġ the"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}",
    }


def random_blocks(kind: str, rows: int, inputs: int) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Random bytes as blocks of a type, with scales that are numbers."""
    quantised = gguf.GGMLQuantizationType[kind]
    weights, size = gguf.GGML_QUANT_SIZES[quantised]
    generator = torch.Generator().manual_seed(len(kind) + rows)
    blocks = torch.randint(0, 256, (rows * inputs // weights, size), dtype=torch.uint8, generator=generator)
    halves = torch.randn(len(blocks), 2, generator=generator).half().view(torch.uint8)
    at = size - 2 if kind == "Q6_K" else 0
    count = 4 if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else 2
    blocks[:, at : at + count] = halves[:, :count]
    return blocks.view(rows, -1).numpy(), quantised
