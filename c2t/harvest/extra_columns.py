"""Extra columns of harvested nodes: the draft's output where a node was sampled, and the target's probability of it
(for decision models and for the oracle)."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from c2t.decoding import Step
from c2t.errors import InputError
from c2t.protocols import TOP_PROBS
from c2t.records.schema import ColumnType
from c2t.sampling import Sampling
from c2t.tree import Tree

# name -> whether the target must run on every tree
COLUMNS = {"top_probs": False, "hidden": False, "target_prob": True}


def types(names: Sequence[str], hidden: int) -> dict[str, ColumnType]:
    """Return the stored types of these columns; `hidden` is the draft's hidden size. InputError for unknown names,
    and for hidden states of a draft that has none."""
    types_of = {
        "top_probs": ColumnType("float32", TOP_PROBS),
        "hidden": ColumnType("float32", hidden),
        "target_prob": ColumnType("float32"),
    }
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise InputError(f"no further column is called {unknown[0]!r}; known: {', '.join(COLUMNS)}")
    if "hidden" in names and not hidden:
        raise InputError("this draft has no hidden states; leave the column hidden out")
    return {name: types_of[name] for name in names}


def recorded(names: Sequence[str]) -> list[str]:
    """Return the names that Steps must record for these columns (`record` of `c2t.decoding.decode`)."""
    return [{"target_prob": "logits"}.get(name, name) for name in names]


def extra_columns(step: Step, names: Sequence[str], proposal: str, sampling: Sampling) -> dict[str, np.ndarray]:
    """Return the columns (B, n, ...) of a round's nodes; NaN for nodes that the draft has not sampled."""
    tree, columns = step.tree, {}
    for name in names:
        if name == "target_prob":
            columns[name] = target_prob(tree, step.extra["logits"], sampling)
        else:
            columns[name] = step.extra["draft"].after(tree.parent, name)
            if proposal == "target-initialised":
                columns[name] = columns[name].masked_fill((tree.depth < 1)[..., None], torch.nan)
    return {name: value.float().cpu().numpy() for name, value in columns.items()}


def target_prob(tree: Tree, logits: Float[Tensor, "B n V"], sampling: Sampling) -> Float[Tensor, "B n"]:
    """Return the probability of each node's path under the target, after its processors; at temperature 0 under its raw
    distribution."""
    processed = sampling.process(logits.flatten(0, 1)).log_softmax(-1).reshape(logits.shape)
    above = processed.gather(1, tree.parent.clamp(min=0)[..., None].expand_as(processed))
    prob = above.gather(2, tree.token[..., None])[..., 0].masked_fill(tree.parent < 0, 0.0)
    return tree.along_path(prob).exp()
