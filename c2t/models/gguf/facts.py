"""Facts about a GGUF file, and the types that its matrices have where c2t computes with its blocks as they are."""

from math import prod
from pathlib import Path
from typing import Any

from c2t.kernels.decoder_layers import Kind
from c2t.models.gguf.config import config_of
from c2t.models.gguf.packed import KINDS
from c2t.models.gguf.reader import read_header
from c2t.models.gguf.tokenizer import tokenizer_kind
from c2t.models.gguf.weights import Weight, weights_of

# Kinds of matrices, by a part of their weights' names.
PARTS = {"attention": "self_attn", "MLP": "mlp", "embedding": "embed_tokens", "LM head": "lm_head"}
BITS = {Kind.INT4: 5.0, Kind.INT4_K: 4.625, Kind.INT8_GROUPS: 8.5, Kind.INT8_K: 8.5625}  # of a weight, scales included
PLAIN = 16.0  # bf16: of what has no packed form, and of the embedding's rows


def facts_of(path: Path) -> dict[str, Any]:
    """Return the facts about a file, from its header alone. InputError as `c2t.models.gguf.conversion.converted`."""
    file = read_header(path)
    config = config_of(file)
    weights = weights_of(file, config)
    matrices = [weight for weight in weights if len(weight.shape) > 1]
    table = next(weight for weight in matrices if PARTS["embedding"] in weight.name)
    head = [table._replace(name="lm_head.weight")] if config.tie_word_embeddings else []
    names = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    about = {name: getattr(config, name) for name in (*names, "max_position_embeddings")}
    about |= {"tokenizer": tokenizer_kind(file), "parameters": sum(prod(weight.shape) for weight in weights)}
    for part, name in PARTS.items():
        some = [weight for weight in (*matrices, *head) if name in weight.name]
        types = sorted({weight.tensor.type.name for weight in some})
        about[part] = "rows in bfloat16, of " + ", ".join(types) if part == "embedding" else _said(some)
    size = sum(prod(weight.shape) * _bits(weight) for weight in (*matrices, *head)) / 8
    return about | {
        "memory as it is": f"{size / 2**20:.0f} MiB",
        "on the disk": f"{path.stat().st_size / 2**20:.0f} MiB",
    }


def _bits(weight: Weight) -> float:
    return PLAIN if PARTS["embedding"] in weight.name else BITS.get(KINDS.get(weight.tensor.type), PLAIN)


def _said(weights: list[Weight]) -> str:
    """Say what matrices are stored in, type by type."""
    said = {}
    for weight in weights:
        kind = weight.tensor.type
        said[kind.name] = f"{kind.name} in {_bits(weight):g} bits" if kind in KINDS else f"{kind.name} in bfloat16"
    return ", ".join(said[name] for name in sorted(said))
