"""One decision of a budget over all rows: the nodes to expand, and those to verify if none is expanded.

It runs in C on a CPU, else in numpy. A round makes two or three such decisions between forwards, with cold processor
caches; in numpy each took about 0.2 ms.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.native import kernels, structs
from c2t.kernels.pointer import pointer, pointers

UNBOUNDED = 2**31
# In replays of out-of-domain texts at the costs of two processors (smollm2, 1 to 16 prompts) a value of 1 is within 3 %
# of this one. Tables of children's measured probabilities are no better.
CHILD = 0.8


@dataclass(eq=False)
class RoundModel:
    """Costs of a round, and the expected probability of a child.

    verify, draft: seconds of a forward by the number of tokens of all rows, with the overhead of the forward. child: a
    child's expected joint probability, as a share of its parent's.
    """

    verify: Float[np.ndarray, " v"]
    draft: Float[np.ndarray, " d"]
    child: float = CHILD

    @cached_property
    def in_c(self) -> ctypes.Structure:
        """The model as the C function's argument."""
        verify, draft = (pointer(torch.from_numpy(array), torch.float64) for array in (self.verify, self.draft))
        return structs.RoundModel(verify, draft, self.child)


class Candidates(NamedTuple):
    """Columns of the trees that a budget reads. log_joint: log of each slot's joint probability under the draft.

    row_weights: weight of a token in each row, 1 on average.
    """

    log_joint: Float[Tensor, "B n"]
    alive: Bool[Tensor, "B n"]
    parent: Int[Tensor, "B n"]
    row_weights: Sequence[float]


class Decision(NamedTuple):
    """A budget's decision. expand: the frontier's slots to expand. width: their number.

    keep: the slots to verify if none is expanded, roots included. order: each row's slots, those to verify first, in
    their order. size: number of tokens to verify in the largest row.
    """

    expand: Bool[Tensor, "B F"]
    width: int
    keep: Bool[Tensor, "B n"]
    order: Int[Tensor, "B n"]
    size: int


def select_nodes(
    candidates: Candidates, slots: Int[Tensor, "B F"], model: RoundModel, spent: float, most: int | None
) -> Decision:
    """Return the slots to expand (slots of -1 are padding), and the nodes to verify if none is expanded.

    Without expansion, the nodes with the largest weighted joint probabilities are verified, as many as maximise the
    expected tokens per second. A slot is expanded on two conditions: its child would be among the nodes to verify, and
    the trees with all such children have more expected tokens per second.

    spent: seconds of the round so far. most: limit on the nodes to verify, None for no limit.
    """
    if candidates.alive.device.type == "cpu" and kernels() is not None:
        return compiled_select_nodes(candidates, slots, model, spent, most)
    return numpy_select_nodes(candidates, slots, model, spent, most)


def probabilities(candidates: Candidates) -> Float[np.ndarray, "B n"]:
    """Return the joint probability of each drafted node, at most its parent's in spite of rounding; -1 for roots and
    dead slots."""
    joint = candidates.log_joint.detach().cpu().numpy().astype(np.float64)
    probability = np.where(candidates.alive.cpu().numpy(), np.exp(joint), -1.0)
    probability[:, 0] = np.inf  # no child exceeds it
    parent = candidates.parent.clamp(min=0).cpu().numpy()
    while (probability > (least := np.minimum(probability, np.take_along_axis(probability, parent, 1)))).any():
        probability = least
    probability[:, 0] = -1.0
    return probability


def heaviest(
    value: Float[np.ndarray, "B n"], probability: Float[np.ndarray, "B n"], count: int
) -> Bool[np.ndarray, "B n"]:
    """Return the roots, and the `count` nodes of all rows with the largest values.

    Values must be monotonic in the probability within a row. Ties go to the most probable node, then to the first slot,
    so that parents are selected before their children.
    """
    by_weight = np.lexsort((-probability.T.ravel(), -value.T.ravel()))
    chosen = np.zeros(probability.size, dtype=bool)
    chosen[by_weight[: max(count, 0)]] = True
    chosen = chosen.reshape(probability.T.shape).T & (probability >= 0)
    chosen[:, 0] = True
    return chosen


def numpy_select_nodes(
    candidates: Candidates, slots: Int[Tensor, "B F"], model: RoundModel, spent: float, most: int | None
) -> Decision:
    """Do `select_nodes` in numpy."""
    probability, wanted = probabilities(candidates), slots.cpu().numpy()
    row_weight = np.array(candidates.row_weights)[:, None]
    rows = len(probability)
    value = np.where(probability >= 0, row_weight * probability, -1.0)
    likely = falling(value[probability >= 0])
    count, rate = best(model, rows, spent, likely[:most])

    asked = wanted >= 0
    children = model.child * (row_weight * np.take_along_axis(probability, wanted.clip(min=0), 1))[asked]

    def with_those(profitable: Bool[np.ndarray, " a"]) -> tuple[Float[np.ndarray, " m"], int, float]:
        expected = falling(np.concatenate([likely, children[profitable]]))
        return expected, *best(model, rows, spent + model.draft[profitable.sum()], expected[:most])

    expected, verified, _ = with_those(np.ones(len(children), dtype=bool))
    profitable = children >= (expected[verified - 1] if verified else np.inf)
    asked[asked] = profitable & (with_those(profitable)[2] > rate)

    keep = heaviest(value, probability, count)
    order = np.argsort(~keep, axis=1, kind="stable")
    expand, keep, order = (torch.from_numpy(array).to(slots.device) for array in (asked, keep, order))
    return Decision(expand, int(asked.sum()), keep, order, int(keep.sum(1).max()))


def best(model: RoundModel, rows: int, spent: float, likely: Float[np.ndarray, " m"]) -> tuple[int, float]:
    """Return the number of nodes to verify with the most expected tokens per second, and that rate.

    likely: the nodes' weights, in the order in which they are added. All numbers are compared, because the costs have
    steps: a number after an unprofitable one can be profitable.
    """
    tokens = np.full(1 + len(likely), float(rows))
    tokens[1:] += likely.cumsum()
    rates = tokens / (spent + model.verify[rows : rows + len(likely) + 1])
    count = int(rates.argmax())
    return count, float(rates[count])


def falling(likely: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return these values in descending order."""
    return np.sort(likely)[::-1]


def compiled_select_nodes(
    candidates: Candidates, slots: Int[Tensor, "B F"], model: RoundModel, spent: float, most: int | None
) -> Decision:
    """Do `select_nodes` in C, on a CPU."""
    log_joint, alive, parent, wanted = (
        array.contiguous() for array in (candidates.log_joint, candidates.alive, candidates.parent, slots)
    )
    (rows, size), wide = log_joint.shape, log_joint.dtype == torch.float64
    row_weights = (ctypes.c_double * rows)(*candidates.row_weights)
    expand, keep = torch.empty_like(wanted, dtype=torch.bool), torch.empty_like(alive)
    order, counts = torch.empty_like(parent), (ctypes.c_int64 * 2)()
    if kernels().select_nodes(
        *(model.in_c, row_weights, rows, size, pointer(log_joint, torch.float64 if wide else torch.float32), wide),
        *(*pointers((alive, parent, wanted), (torch.bool, torch.int64, torch.int64)), wanted.shape[1]),
        *(spent, UNBOUNDED if most is None else most),
        *(*pointers((expand, keep, order), (torch.bool, torch.bool, torch.int64)), counts),
    ):
        raise MemoryError(f"no memory to choose among {rows * size} nodes")
    return Decision(expand, counts[0], keep, order, counts[1])
