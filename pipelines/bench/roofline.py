"""A model of what rounds cost on an H200, and the speeds of replayed rounds by it. It is a model: no GPU was used.

A forward takes the longer of two times, to read the weights (bandwidth) or to multiply by them (arithmetic), both at a
share EFFICIENCY of what the data sheet says; reading the keys and values of every row's prefix comes on top. Launches
and everything outside the forwards are free, as with CUDA graphs. The draft is one layer of the target, with its LM
head. Which tokens are accepted is the real pair's, not that of a 7B or 70B model.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from c2t.batch_costs import NODES, profile
from c2t.models.pairs import Pair
from c2t.policies.budget import Budget
from c2t.policies.round_costs import Children, Curve, Profile, Rest, RoundCosts
from c2t.policies.spec import describe
from c2t.protocols import Policy
from c2t.replay.lockstep import Continuation
from c2t.study.rounds import Round, replayed

BANDWIDTH, ARITHMETIC = 4.8e12, 989e12  # bytes/s and dense bfloat16 FLOP/s of an H200
EFFICIENCY, BYTES = 0.7, 2
PREFIX = 1024  # tokens of each row whose keys and values are read
MOST = 2**20  # tokens at which the curves end


@dataclass(frozen=True)
class Shape:
    """Sizes of a target."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def layer(self) -> int:
        """Weights of one layer."""
        kv = self.hidden // self.heads * self.kv_heads
        return 2 * self.hidden * (self.hidden + kv) + 3 * self.hidden * self.intermediate

    @property
    def head(self) -> int:
        """Weights of the LM head."""
        return self.hidden * self.vocabulary

    @property
    def prefix(self) -> float:
        """Seconds to read the keys and values of one row's prefix in one layer."""
        kv = self.hidden // self.heads * self.kv_heads
        return 2 * kv * PREFIX * BYTES / (BANDWIDTH * EFFICIENCY)

    def costs(self, yields: Profile, copies: float = 1.0) -> RoundCosts:
        """Return the costs of rounds in which every row stands for so many requests."""
        verify, draft = self.layers * self.layer + self.head, self.layer + self.head
        rest = Rest(a_row=self.layers * self.prefix * copies, a_level_row=self.prefix * copies)
        return RoundCosts(forward(verify, copies), forward(draft, copies), rest, yields)


def forward(weights: int, copies: float) -> Curve:
    """Return the seconds of a forward: flat up to the tokens at which arithmetic takes as long as reading the weights,
    and rising from there."""
    reading = weights * BYTES / (BANDWIDTH * EFFICIENCY)
    a_token = 2 * weights / (ARITHMETIC * EFFICIENCY)
    sizes = (1 / copies, reading / a_token / copies, MOST / copies)
    return Curve(sizes, (reading, reading, MOST * a_token))


TARGETS = {
    "7B": Shape(32, 4096, 11008, 32, 32, 32000),
    "70B": Shape(80, 8192, 28672, 64, 8, 32000),
}


class Batched(NamedTuple):
    """A policy and the rounds of each text."""

    policy: Policy
    rounds: list[list[Round]]


def UNKNOWN(levels: int) -> RoundCosts:
    """Return costs in the place of those that the model gives later."""
    nothing = Profile((1.0,) * levels, NODES, ((0.0,) * len(NODES),) * levels, Children())
    return TARGETS["7B"].costs(nothing)


def compared(
    pair: Pair,
    field: dict[str, list[Policy]],
    judging: Sequence[Continuation],
    choosing: Sequence[Continuation],
    sizes: Sequence[int],
    tell: Callable[[int, int, str], None],
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield each batch size with a row for every target and family; settings are chosen on other texts than judge.

    A batch of more rows than there are texts holds several copies of each.
    """
    policies = [policy for each in field.values() for policy in each if not isinstance(policy, Budget)]
    budgets = [policy for each in field.values() for policy in each if isinstance(policy, Budget)]
    of = 2 * len(policies) + len(sizes) * len(TARGETS) * len(budgets) + 1
    done = 0
    alone: dict[tuple[int, bool], list[list[Round]]] = {}
    for judges, texts in ((False, choosing), (True, judging)):
        for policy in policies:
            tell(done, of, describe(policy, brief=True))
            alone[id(policy), judges] = replayed(pair, policy, texts, 0)
            done += 1
    tell(done, of, "the yield of drafts")
    yields = {id(policy): profile(pair, policy.policy, choosing) for policy in budgets}
    for size in sizes:
        rows: list[dict[str, Any]] = []
        for name, shape in TARGETS.items():
            plain = 0.0
            for family, rivals in field.items():
                if isinstance(rivals[0], Budget):
                    tell(done, of, f"budgets for batches of {size}, {name}")
                    rated = [
                        rate(shape, together(pair, shape, each, yields[id(each)], choosing, size).rounds, size)
                        for each in rivals
                    ]
                    best = rivals[int(np.argmax(rated))]
                    chosen, found = together(pair, shape, best, yields[id(best)], judging, size)
                    done += len(rivals)
                else:
                    rated = [rate(shape, alone[id(policy), False], size) for policy in rivals]
                    chosen = rivals[int(np.argmax(rated))]
                    found = alone[id(chosen), True]
                speed = rate(shape, found, size)
                plain = plain or speed
                rows.append(row(name, family, size, chosen, found, speed, plain))
        yield size, rows


def together(
    pair: Pair, shape: Shape, policy: Budget, yields: Profile, texts: Sequence[Continuation], size: int
) -> Batched:
    """Return the budget at the modelled costs, and the rounds of texts that share it in batches of a size."""
    rows = min(size, len(texts))
    budget = Budget(policy.policy, costs=shape.costs(yields, size / rows))
    return Batched(budget, replayed(pair, budget, texts, 0, batch=rows))


def rate(shape: Shape, alone: Sequence[Sequence[Round]], size: int) -> float:
    """Return the modelled tokens per second of rounds in batches of a size. The first rounds, in which the draft reads
    the prompts, are left out."""
    costs, rows = UNKNOWN(1), min(size, len(alone))
    costs = shape.costs(costs.profile, size / rows)
    new = seconds = 0.0
    for start in range(0, len(alone) - rows + 1, rows):
        for now in list(zip_longest(*alone[start : start + rows]))[1:]:
            going = [one for one in now if one is not None]
            widths = [sum(level) for level in zip_longest(*(one.widths for one in going), fillvalue=0)]
            verified = np.array([sum(one.verified for one in going)])
            new += sum(one.new for one in going)
            seconds += float(costs.seconds(len(going), widths, verified)[0])
    return size / rows * new / seconds


def row(
    target: str, family: str, size: int, policy: Policy, found: Sequence[Sequence[Round]], speed: float, plain: float
) -> dict[str, Any]:
    """Return the figures of one family's policy."""
    rounds = [one for each in found for one in each[1:]]
    return {
        "target": target,
        "batch": size,
        "contender": family,
        "label": describe(policy, brief=True),
        "tokens_per_second": speed,
        "against_plain": speed / plain,
        "tau": sum(one.accepted for one in rounds) / len(rounds),
        "gamma": sum(one.verified for one in rounds) / len(rounds),
        "draft_passes": sum(len(one.widths) for one in rounds) / len(rounds),
    }
