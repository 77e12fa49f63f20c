"""Folders of a target in ONNX Runtime's form, which its own builder makes of the target's checkpoint.

Weights are rounded in blocks, each with a scale in float32: in 8 bits, or in 4 bits with an LM head in 8, as c2t and
OpenVINO have it. Such a head cannot be shared with the embedding, whose rows are left in float32.

Blocks of 64 are its fastest at bits and quality like others': 8.5 and 5.3 bits a weight of smollm2's target. Blocks of
32 with all weights in 4 bits are 5 bits, with as many of float32's tokens, but prompts take a sixth longer and steps up
to a tenth. The library fills up rows of 576 for blocks of 128: 9.1 and 5.6 bits, a tenth faster, but three tokens in a
hundred more are not float32's. Its `k_quant` is no faster than blocks of 32, and no better.
"""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedConfig

from c2t.models.target.families import head_dim
from c2t.models.target.target import Target
from pipelines.bench.programs import made, not_one_file, uneven
from pipelines.bench.sizes import Size, size_of_target

BITS = {"int8": 8, "int4": 4}  # of layers
HEAD_BITS = 8
BLOCK = 64  # weights of a row that share a scale
SCALE = 32  # bits of it
FORM = 1  # of the folders; another number makes all of them again


def why_not(config: PreTrainedConfig, source: str) -> str | None:
    """Say why a target is not exported, in a few words; None if it is."""
    if config.model_type != "llama":
        return f"models are made of Llama targets, not of {config.model_type}"
    inputs = (config.hidden_size, config.num_attention_heads * head_dim(config), config.intermediate_size)
    return not_one_file(source) or uneven(inputs, BLOCK)


def size_of(target: Target, kind: str) -> Size:
    """Return the size of a target's layers and LM head in a kind of `BITS`."""
    weights, head = size_of_target(target).weights, target.lm_head.weight.numel()
    bits = (weights - head) * BITS[kind] + head * HEAD_BITS + weights // BLOCK * SCALE
    return Size(bits // 8, weights)


def exported(source: Path, folder: Path, kind: str, whole: bool, build: Sequence[str]) -> Path:
    """Return the model of a kind of `BITS`, which the builder makes of a checkpoint if the folder does not have it.

    whole: the model returns logits of all tokens, not of the last one alone. build: the builder's command. InputError:
    see `made`.
    """
    options = {
        "accuracy_level": 4,  # products of 8 bits, for which this processor has instructions
        "block_size": BLOCK,
        "matmul_mixed_precision": f"last_matmul:int{HEAD_BITS}",
        "shared_embeddings": "false",
        "prune_lm_head": "false" if whole else "true",
    }
    extra = [f"{name}={value}" for name, value in options.items()]
    paths = ["--input", str(source), "--cache_dir", str(folder / "cache")]  # that one is empty, and removed again
    command = [*build, *paths, "--precision", kind, "--execution_provider", "cpu", "--extra_options", *extra]
    return made(folder / f"{FORM}-{kind}-{'all' if whole else 'last'}", [*command, "--output"])
