"""Folders of a target and of its EAGLE-3 head in OpenVINO's form, exported by the program that its documentation names.

The target is exported from its checkpoint in 8 bits, and in 4 bits with an LM head in 8. A head is exported from a
checkpoint in the upstream format, which gets the target's embedding and the rows of its LM head, as published ones have
them.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from c2t.models.target.target import Target
from pipelines.bench.programs import made, not_one_file, uneven
from pipelines.bench.sizes import Size

BITS = {"int8": ("--weight-format", "int8"), "int4": ("--weight-format", "int4", "--group-size", "64", "--ratio", "1")}
HEAD = "eagle3"
GROUP = 64  # weights of a row that share a scale in 4 bits
FORM = 1  # of the folders; another number makes all of them again


def why_not(config: PreTrainedConfig, target: str) -> str | None:
    """Say why a target is not exported, in a few words; None if it is."""
    if not config.tie_word_embeddings:
        return "the size of a step is known of targets whose LM head is their embedding"
    return not_one_file(target) or uneven((config.hidden_size, config.intermediate_size), GROUP)


def write_head(head: Path, target: Target, folder: Path) -> None:
    """Write an EAGLE-3 head into a folder as a published checkpoint has it: with an embedding and an LM head, and the
    name of the architecture that the exporter knows."""
    weights = load_file(head / "model.safetensors")
    embedding = target.embed_tokens.weight.detach().to(torch.bfloat16)
    if "lm_head.weight" not in weights:
        weights["lm_head.weight"] = embedding[weights["t2d"].nonzero()[:, 0]]
    weights.setdefault("embed_tokens.weight", embedding.clone())
    config = target.config
    fields = json.loads((head / "config.json").read_text()) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "head_dim": config.head_dim,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "tie_word_embeddings": False,
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(fields))


def exported(source: Path, folder: Path, export: Sequence[str], options: Sequence[str]) -> Path:
    """Return the folder, which the command makes of a checkpoint if it is not there. InputError: see `made`."""
    return made(folder, [*export, "--model", str(source), "--task", "text-generation-with-past", *options])


def files(source: Path, folder: Path, export: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each number of bits. source: the target's checkpoint."""
    return {kind: exported(source, folder / f"{FORM}-{kind}", export, options) for kind, options in BITS.items()}


def exported_head(head: Path, target: Target, source: Path, folder: Path, export: Sequence[str]) -> Path:
    """Return the folder of an EAGLE-3 head in 8 bits. source: the target's checkpoint, which has the tokenizer."""
    out = folder / f"{FORM}-{HEAD}"
    if out.is_dir():
        return out
    with TemporaryDirectory() as checkpoint:
        write_head(head, target, Path(checkpoint))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(source / name, checkpoint)
        # The exporter's code of these heads is loaded as code of a checkpoint is.
        return exported(Path(checkpoint), out, export, (*BITS["int8"], "--trust-remote-code"))


def size_of_folder(folder: Path, target: Target) -> Size:
    """Return the size of what a step reads. The embedding is the LM head, so it is the whole file of weights; norms are
    in it as well."""
    matrices = [weight for weight in target.model.parameters() if weight.ndim > 1]
    return Size((folder / "openvino_model.bin").stat().st_size, sum(weight.numel() for weight in matrices))
