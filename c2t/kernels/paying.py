"""One decision of a budget over all rows: which nodes to expand, and which ones to verify if none is (in C on a CPU,
else in numpy).

A round makes two or three of these decisions between two forwards, when no code is in the processor's caches. numpy's
small arrays took about a fifth of a millisecond for each.
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
# By replay of held-out texts at the costs of two processors (smollm2, 1 to 16 prompts) 1 is within 3 % of it, and
# tables of what children of nodes of each probability had on other texts win nothing over it.
CHILD = 0.8


@dataclass(eq=False)
class RoundModel:
    """Costs and a promise, by which decisions are made. verify, draft: seconds of a forward by the number of tokens of
    all rows, the parts of a round that come with it included. child: share of an expanded node's probability that its
    child is taken to have."""

    verify: Float[np.ndarray, " v"]
    draft: Float[np.ndarray, " d"]
    child: float = CHILD

    @cached_property
    def in_c(self) -> ctypes.Structure:
        """The same for the C function."""
        verify, draft = (pointer(torch.from_numpy(each), torch.float64) for each in (self.verify, self.draft))
        return structs.RoundModel(verify, draft, self.child)


class Guesses(NamedTuple):
    """Columns of trees: the log of the joint probability of each slot under the draft, who is alive, and the parents;
    and what a token of each row is worth, 1 on average."""

    log_joint: Float[Tensor, "B n"]
    alive: Bool[Tensor, "B n"]
    parent: Int[Tensor, "B n"]
    worth: Sequence[float]


class Decision(NamedTuple):
    """expand: which of the frontier's slots to expand, `width` in all. keep: what to verify if nothing is expanded,
    roots included; places: each row's kept slots in their order, before the others; `size` tokens in the largest row.
    """

    expand: Bool[Tensor, "B F"]
    width: int
    keep: Bool[Tensor, "B n"]
    places: Int[Tensor, "B n"]
    size: int


def decide(guesses: Guesses, slots: Int[Tensor, "B F"], model: RoundModel, spent: float, most: int | None) -> Decision:
    """Return what to expand of the slots (-1: none), and what to verify if that is nothing.

    Without expanding, those nodes are verified whose probability to be accepted is worth most, as many as promise most
    tokens per second. A slot is expanded if its child would be among the nodes to verify, and if the trees with all
    such children promise more tokens per second than without. spent: seconds of the round up to here. most: nodes to
    verify, None for any number.
    """
    if guesses.alive.device.type == "cpu" and kernels() is not None:
        return compiled_decide(guesses, slots, model, spent, most)
    return numpy_decide(guesses, slots, model, spent, most)


def probabilities(guesses: Guesses) -> Float[np.ndarray, "B n"]:
    """Return the joint probability of each drafted node, -1 for roots and dead slots; none is above its parent's,
    whatever rounding does."""
    joint = guesses.log_joint.detach().cpu().numpy().astype(np.float64)
    found = np.where(guesses.alive.cpu().numpy(), np.exp(joint), -1.0)
    found[:, 0] = np.inf  # which no child is above
    parent = guesses.parent.clamp(min=0).cpu().numpy()
    while (found > (least := np.minimum(found, np.take_along_axis(found, parent, 1)))).any():
        found = least
    found[:, 0] = -1.0
    return found


def worth_most(
    value: Float[np.ndarray, "B n"], probability: Float[np.ndarray, "B n"], count: int
) -> Bool[np.ndarray, "B n"]:
    """Return the roots and the `count` nodes of all rows with the largest values, which do not fall where a row's
    probabilities rise. Of equal ones the most probable are taken, and of these those of the first slots, so that
    parents come before their children."""
    order = np.lexsort((-probability.T.ravel(), -value.T.ravel()))
    chosen = np.zeros(probability.size, dtype=bool)
    chosen[order[: max(count, 0)]] = True
    chosen = chosen.reshape(probability.T.shape).T & (probability >= 0)
    chosen[:, 0] = True
    return chosen


def numpy_decide(
    guesses: Guesses, slots: Int[Tensor, "B F"], model: RoundModel, spent: float, most: int | None
) -> Decision:
    """Do `decide` in numpy."""
    probability, wanted, worth = probabilities(guesses), slots.cpu().numpy(), np.array(guesses.worth)[:, None]
    rows = len(probability)
    value = np.where(probability >= 0, worth * probability, -1.0)
    likely = falling(value[probability >= 0])
    count, rate = best(model, rows, spent, likely[:most])

    asked = wanted >= 0
    children = model.child * (worth * np.take_along_axis(probability, wanted.clip(min=0), 1))[asked]

    def with_those(pays: Bool[np.ndarray, " a"]) -> tuple[Float[np.ndarray, " m"], int, float]:
        promised = falling(np.concatenate([likely, children[pays]]))
        return promised, *best(model, rows, spent + model.draft[pays.sum()], promised[:most])

    promised, verified, _ = with_those(np.ones(len(children), dtype=bool))
    pays = children >= (promised[verified - 1] if verified else np.inf)
    asked[asked] = pays & (with_those(pays)[2] > rate)

    keep = worth_most(value, probability, count)
    places = np.argsort(~keep, axis=1, kind="stable")
    expand, keep, places = (torch.from_numpy(each).to(slots.device) for each in (asked, keep, places))
    return Decision(expand, int(asked.sum()), keep, places, int(keep.sum(1).max()))


def best(model: RoundModel, rows: int, spent: float, likely: Float[np.ndarray, " m"]) -> tuple[int, float]:
    """Return how many nodes to verify for most tokens per second, and that rate; likely: what nodes are worth, in the
    order in which they are added. The curve of costs has steps, so all numbers are looked at, not only those up to the
    first that does not pay."""
    tokens = np.full(1 + len(likely), float(rows))
    tokens[1:] += likely.cumsum()
    rates = tokens / (spent + model.verify[rows : rows + len(likely) + 1])
    count = int(rates.argmax())
    return count, float(rates[count])


def falling(likely: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return these probabilities, the largest first."""
    return np.sort(likely)[::-1]


def compiled_decide(
    guesses: Guesses, slots: Int[Tensor, "B F"], model: RoundModel, spent: float, most: int | None
) -> Decision:
    """Do `decide` in C, on a CPU."""
    log_joint, alive, parent, wanted = (
        each.contiguous() for each in (guesses.log_joint, guesses.alive, guesses.parent, slots)
    )
    (rows, size), wide = log_joint.shape, log_joint.dtype == torch.float64
    worth = (ctypes.c_double * rows)(*guesses.worth)
    expand, keep = torch.empty_like(wanted, dtype=torch.bool), torch.empty_like(alive)
    places, found = torch.empty_like(parent), (ctypes.c_int64 * 2)()
    if kernels().decide(
        *(model.in_c, worth, rows, size, pointer(log_joint, torch.float64 if wide else torch.float32), wide),
        *(*pointers((alive, parent, wanted), (torch.bool, torch.int64, torch.int64)), wanted.shape[1]),
        *(spent, UNBOUNDED if most is None else most),
        *(*pointers((expand, keep, places), (torch.bool, torch.bool, torch.int64)), found),
    ):
        raise MemoryError(f"no memory to choose among {rows * size} nodes")
    return Decision(expand, found[0], keep, places, found[1])
