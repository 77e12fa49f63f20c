"""The weights of published block drafters under DeepSpec's names, and the tokens of their own vocabularies."""

from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.models.loading.eagle3_config import with_maps
from c2t.models.loading.weight_files import renamed

# What no forward reads: the target's rows, by which speculators makes its labels, and what follows from the config.
UNREAD = ("verifier_lm_head.", "verifier_norm.", "rotary_emb.")
MARKOV = ("markov_w1.", "markov_w2.", "gate_proj.", "joint_proj.")


class BlockWeights(NamedTuple):
    """Weights of a block drafter. tokens: ids of its own vocabulary, None if its file names none."""

    state: dict[str, Tensor]
    tokens: Int[Tensor, " v"] | None


def adapted(state: dict[str, Tensor], vocabulary: int, folder: Path) -> BlockWeights:
    """Return the weights of a file. InputError for one that is there under two names, and for a map of its vocabulary
    that names no rising tokens of the target."""
    weights = with_maps(renamed(state, _name, folder), vocabulary, folder)
    d2t = weights.pop("d2t", None)
    weights.pop("t2d", None)
    if d2t is None or len(d2t) == vocabulary:
        return BlockWeights(weights, None)
    return BlockWeights(weights, torch.arange(len(d2t), device=d2t.device) + d2t)


def _name(name: str) -> str:
    """Return DeepSpec's name of a tensor, "" for one that no forward reads."""
    name = name.removeprefix("model.").removeprefix("logit_head.")  # an older SpecForge's
    if name.startswith(UNREAD):
        return ""
    if name.startswith(MARKOV):  # ModelOpt's
        return f"markov_head.{name}"
    name = name.replace("_codebook.weight", "_codebook")
    return name.replace("confidence_proj.", "confidence_head.proj.")
