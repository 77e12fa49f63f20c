"""Measurement of what a round of a batch costs on this machine, and of what a policy's drafts win on a pair."""

import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice, product
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.decoding import Step
from c2t.kernels.layered import Layered
from c2t.kernels.llama_layer import edges
from c2t.kernels.select import SelectLimits
from c2t.models.loading import Pair
from c2t.policies.budget import Budget
from c2t.policies.plain import Plain
from c2t.policies.round_costs import Calibration, Children, Curve, Profile, Rest, RoundCosts, counts
from c2t.protocols import Policy, Root, grown_by
from c2t.replay.lockstep import Continuation, replay, write_continuations
from c2t.sampling import Sampling
from c2t.target_verifier import generate, pad
from c2t.tree import Nodes, Tree

TEXTS = 16  # that the yield is measured on
ROWS = (4, 16)  # of them are decoded together against the clock
NEW_TOKENS = 32  # of each of these texts
ALONE = 3  # of them are decoded one by one against the clock
TIMED_TOKENS = 16  # of each of these
REPEATS = 6  # of each forward
OF_A_PHASE = 3  # of a draft phase, of each measurement
WARM = 2  # of these before the first round, which is drafted by what they took
# Tokens of all rows at which forwards are timed: some, and those on both sides of a step in the cost.
VERIFIED = tuple(sorted({1, 2, 4, 8, 64, 96, 128} | edges(50)))
DRAFTED = tuple(sorted({1, 2, 4, 8, 24, 32, 48, 64, 96} | edges(20)))
BRANCHING = 4  # children of each node in the trees that are timed: neither a chain nor a fan
NODES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0)
UNDISTURBED = 0.25  # quantile of repeated measurements that counts
TOKENS_OF_A_ROUND = 2  # of a row, about, with trees
TYPICAL = 4  # tokens a row of the rounds that the rest is fitted on
PER_GROUP = 16  # accepted nodes of which a share is made
LENGTHS = ("levels", "length")  # settings that say how deep a policy drafts
Clock = Callable[[], float]


class Family(NamedTuple):
    """Confidences of an expanded node and of its children."""

    parent: float
    children: Float[np.ndarray, " k"]


class Round(NamedTuple):
    """A real round. widths: tokens of all rows in each draft forward; verified: in the target's, roots included."""

    rows: int
    widths: tuple[int, ...]
    verified: int


class Excess(NamedTuple):
    """Seconds that real rounds took beyond their forwards, at the quantile UNDISTURBED of `rounds` rounds of so many
    rows and draft forwards."""

    rows: int
    levels: int
    rounds: int
    seconds: float


def measure(
    pair: Pair,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    repeats: int = REPEATS,
    clock: Clock = time.perf_counter,
) -> RoundCosts:
    """Return the costs of rounds on this machine, and the yield of a ranked policy's trees on the first TEXTS of these
    prompts.

    The texts are greedy. Forwards and real rounds take turns, `repeats` times, so that a machine whose speed drifts
    treats all alike: what a round takes beyond its forwards is a small difference of the two.
    """
    texts = write_continuations(
        pair.target, prompts[:TEXTS], max_new_tokens=NEW_TOKENS, beyond=policy.levels + 1, sampling=Sampling()
    )
    found = profile(pair, policy, texts)
    forwards = Forwards(Bench(pair, texts[:1], clock, getattr(policy, "layered", None)))
    for _ in range(WARM):
        forwards.time()
    # For one row the levels of real rounds: those that pay have few nodes to expand, and cost less than all would.
    usual = [Plain(), Budget(policy, costs=forwards.costs(found))]
    alone = [
        RealRounds(pair, one, [[prompt] for prompt in prompts[:ALONE]], NEW_TOKENS, repeats, clock) for one in usual
    ]
    # For many rows, for which drafting may not pay, every level, so that their costs are known.
    together = [
        RealRounds(pair, one, [prompts[:rows]], TIMED_TOKENS, repeats, clock)
        for rows in ROWS
        for one in (Plain(), *eager(policy, found, TYPICAL * rows))
    ]
    for _ in range(repeats):
        forwards.time()
        for rounds in (*alone, *together):
            rounds.go_on()
    costs = forwards.costs(found)
    return costs._replace(rest=fit([excess for rounds in (*alone, *together) for excess in rounds.excesses(costs)]))


def profile(pair: Pair, policy: Policy, texts: Sequence[Continuation]) -> Profile:
    """Return the yield of a policy's trees, from the rounds that these texts take.

    All rounds' nodes are sorted together by their confidence, as a budget sorts those of a batch.
    """
    confidence, depth, accepted = [], [], []
    known: list[Family] = []
    widths, rounds = np.zeros(max(policy.levels, 1)), 0
    budget = Budget(policy, nodes=1)
    for step in replay(pair.draft, policy, texts, record=("slots",)):
        if step.tree is None:
            continue
        rounds += len(step.rows)
        levels = np.array([(slots >= 0).sum(1).tolist() for slots in step.extra["draft"].slots])
        widths[: len(levels)] += levels.sum(1)
        sure, path = budget.confidence(step.tree), step.accepted.slots
        taken = torch.zeros_like(step.tree.token).scatter_(1, path.clamp(min=0), 1).cpu().numpy()
        depths, parents = step.tree.depth.cpu().numpy(), step.tree.parent.cpu().numpy()
        for row in range(len(sure)):
            known += families(sure[row], depths[row], parents[row], levels[1:, row])
        confidence.append(sure[sure >= 0])
        depth.append(depths[sure >= 0])
        accepted.append(taken[sure >= 0] > 0)
    if not rounds:
        gains, none = ((0.0,) * len(NODES),) * policy.levels, Calibration()
        return Profile((1.0,) * policy.levels, NODES, gains, promise(none, []), none)
    order = np.argsort(-np.concatenate(confidence), kind="stable")
    sure, depths, won = (np.concatenate(parts)[order] for parts in (confidence, depth, accepted))
    gains = []
    for levels in range(1, policy.levels + 1):
        total = np.concatenate([[0], won[depths < levels].cumsum()])
        gains.append(tuple(float(total[min(int(n * rounds), len(total) - 1)] / rounds) for n in NODES))
    shares = calibrate(sure, won)
    return Profile(
        tuple(map(float, widths[: policy.levels] / rounds)), NODES, tuple(gains), promise(shares, known), shares
    )


def families(
    confidence: Float[np.ndarray, " n"],
    depth: Int[np.ndarray, " n"],
    parent: Int[np.ndarray, " n"],
    widths: Int[np.ndarray, " l"],
) -> Iterator[Family]:
    """Yield the nodes of a tree that were expanded, with their children; widths: how many on each level. They are taken
    to be the most confident ones of their level. confidence: below 0 for the root and for dead slots."""
    for level, width in enumerate(widths):
        here = np.flatnonzero((depth == level) & (confidence >= 0))
        for node in here[np.argsort(-confidence[here], kind="stable")][:width]:
            yield Family(confidence[node], confidence[(parent == node) & (confidence >= 0)])


def promise(calibration: Calibration, known: Sequence[Family]) -> Children:
    """Return what the children of nodes of each confidence promise: their calibrated confidences, averaged over groups
    of nodes that promise PER_GROUP accepted ones each. A node without confidence promises nothing, and so do all where
    none was expanded."""
    known = sorted((family for family in known if family.parent > 0), key=lambda family: family.parent)
    most = max((len(family.children) for family in known), default=1) or 1
    if not known:
        return Children((0.0, 1.0), ((0.0,), (0.0,)))
    parents, likely = np.array([family.parent for family in known], float), np.zeros((len(known), most))
    for row, family in zip(likely, known, strict=True):
        row[: len(family.children)] = -np.sort(-calibration.at(family.children))
    before = likely.sum(1).cumsum() - likely.sum(1)
    firsts = np.unique(
        parents[np.searchsorted(before, np.arange(0, before[-1] + 1, PER_GROUP)).clip(max=len(known) - 1)]
    )
    groups = np.searchsorted(firsts, parents, side="right") - 1
    found = [(float(parents[groups == group].mean()), likely[groups == group].mean(0)) for group in range(len(firsts))]
    confidences, shares = zip((0.0, np.zeros(most)), *found, strict=True)
    return Children(confidences, tuple(tuple(map(float, each)) for each in shares))


def calibrate(confidence: Float[np.ndarray, " n"], accepted: Bool[np.ndarray, " n"]) -> Calibration:
    """Return the share of accepted nodes by confidence (isotonic regression over groups of nodes with PER_GROUP
    accepted ones each); `confidence` falls."""
    groups = np.minimum(accepted.cumsum() - accepted, max(int(accepted.sum()) - 1, 0)) // PER_GROUP
    blocks: list[tuple[float, float, int]] = []  # mean confidence, share, nodes; shares fall
    for group in np.unique(groups):
        mine = groups == group
        block = float(confidence[mine].mean()), float(accepted[mine].mean()), int(mine.sum())
        while blocks and blocks[-1][1] <= block[1]:  # pool adjacent violators
            others = blocks.pop()
            both = others[2] + block[2]
            sure, share = ((a * others[2] + b * block[2]) / both for a, b in zip(others[:2], block[:2], strict=True))
            block = sure, share, both
        blocks.append(block)
    rising = [(0.0, 0.0), *(block[:2] for block in reversed(blocks)), (1.0, blocks[0][1] if blocks else 0.0)]
    confidences, shares = zip(*rising, strict=True)
    return Calibration(confidences, shares)


class Forwards:
    """Seconds of the target's and of the draft's forwards over so many tokens of one row; more rows cost what real
    rounds of them take beyond that."""

    def __init__(self, bench: "Bench"):
        self.bench = bench
        self.seconds: dict[tuple[str, int], list[float]] = {}

    def time(self) -> None:
        """Time every forward once."""
        for kind, totals in (("verify", VERIFIED), ("draft", DRAFTED)):
            for total in totals:
                self.seconds.setdefault((kind, total), []).append(getattr(self.bench, kind)(total))

    def costs(self, found: Profile) -> RoundCosts:
        """Return costs of rounds that take no time beyond their forwards."""
        verify, draft = (
            Curve(totals, envelope([undisturbed(self.seconds[kind, total]) for total in totals]))
            for kind, totals in (("verify", VERIFIED), ("draft", DRAFTED))
        )
        return RoundCosts(verify, draft, Rest(), found)


def envelope(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return for each size the least seconds of it and of all larger ones: a forward over fewer tokens takes no longer,
    and where it did the machine was busy."""
    return tuple(map(float, np.minimum.accumulate(np.array(seconds)[::-1])[::-1]))


class Bench:
    """Forwards against the clock, behind the first half of each text. layered: a policy as numbers, whose trees the
    draft grows by itself, where it can."""

    def __init__(self, pair: Pair, texts: Sequence[Continuation], clock: Clock, layered: Layered | None = None):
        self.clock, self.layered = clock, layered
        device = pair.target.device
        tokens, _ = pad([text.tokens.tolist() for text in texts], device)
        self.lengths = torch.tensor([(text.prompt + text.end) // 2 for text in texts], device=device)
        self.root = tokens.gather(1, self.lengths[:, None])[:, 0]
        self.session = pair.target.session()
        self.session.prefill(tokens[:, : int(self.lengths.max())], self.lengths)
        middle = int(self.lengths[0])
        self.drafted = pair.draft.session()
        self.drafted.observe(tokens[:1, : middle + 1], texts[0].features[None, :middle], self.lengths[:1])

    @torch.inference_mode()
    def verify(self, size: int) -> float:
        """Return the target's seconds over trees of `size` tokens."""
        session = copy.copy(self.session)
        session.cache = session.cache.copy()  # which grows and moves rows without a change to the texts' own
        session.select(torch.arange(len(self.root), device=self.root.device))
        tree = regular(self.root, size, BRANCHING)
        start = self._now()
        session.verify(tree)
        return self._now() - start

    @torch.inference_mode()
    def draft(self, width: int) -> float:
        """Return the draft's seconds over a level of `width` tokens under the root, behind the first text in each
        row."""
        if self.layered is not None and (one := self._phase(width, 1)) is not None:
            return max(self._phase(width, 2) - one, sys.float_info.min)
        tree = regular(self.root, width + 1, width)
        session = self.drafted.fork(torch.zeros(len(tree.token), dtype=torch.long, device=self.root.device))
        slots = torch.arange(width + 1, device=self.root.device).expand(len(tree.token), -1)
        session.expand(tree, slots[:, :1])
        start = self._now()
        session.expand(tree, slots[:, 1:])
        return self._now() - start

    def _phase(self, width: int, levels: int) -> float | None:
        """Return the seconds of trees that are drafted at once, the least of some: a difference of two is wanted, from
        which others' work would not only add. None where the draft does not."""
        session, root = self.drafted.fork(torch.zeros_like(self.lengths)), Root(self.root, None)
        plan = self.layered._replace(K=width, width=width, levels=levels, limits=SelectLimits(0.0), reranked=None)
        seconds = []
        for _ in range(1 + OF_A_PHASE):  # the first time it makes its room
            start = self._now()
            if grown_by(session, plan, root) is None:
                return None
            seconds.append(self._now() - start)
        return min(seconds[1:])

    def _now(self) -> float:
        return now(self.root.device, self.clock)


def regular(root: Int[Tensor, " B"], size: int, branching: int) -> Tree:
    """Return trees of `size` tokens in which every node has `branching` children, level by level."""
    parents = [(place - 1) // branching for place in range(1, size)]
    depths = [-1]
    for parent in parents:
        depths.append(depths[parent] + 1)
    token = root[:, None].expand(-1, size - 1)
    zero = torch.zeros(token.shape, dtype=torch.float32, device=root.device)
    columns = {"parent": parents, "depth": depths[1:], "rank": [0] * (size - 1)}
    whole = {name: root.new_tensor(values).expand_as(token) for name, values in columns.items()}
    floats = {name: zero for name in ("log_prob", "log_joint", "entropy", "max_log_prob", "score")}
    return Tree.root(root).extend(Nodes(token=token, **whole, **floats, alive=torch.ones_like(token, dtype=torch.bool)))


class RealRounds:
    """Rounds of a policy that decodes batches one after the other, against the clock, in about `turns` turns."""

    def __init__(
        self,
        pair: Pair,
        policy: Any,
        batches: Sequence[Sequence[Sequence[int]]],
        new_tokens: int,
        turns: int,
        clock: Clock,
    ):
        self.timed: list[tuple[Round, float]] = []
        rounds = len(batches) * new_tokens / (TOKENS_OF_A_ROUND if policy.levels else 1)
        self.a_turn = ceil(rounds / turns)
        self.steps = self._decode(pair, policy, batches, new_tokens, clock)

    def go_on(self) -> None:
        """Play the rounds of a turn, or as many as are left."""
        self.timed += islice(self.steps, self.a_turn)

    def _decode(
        self, pair: Pair, policy: Any, batches: Sequence[Sequence[Sequence[int]]], new_tokens: int, clock: Clock
    ) -> Iterator[tuple[Round, float]]:
        """Yield rounds with their seconds, but for each batch's first one, in which the draft reads the prompts."""
        for prompts in batches:
            steps = generate(
                pair.target,
                pair.draft,
                policy,
                prompts,
                max_new_tokens=new_tokens,
                sampling=Sampling(),
                record=("slots",) if policy.levels else (),
            )
            for step, seconds in islice(ticking(steps, pair.target.device, clock), 2, None):
                slots = step.extra["draft"].slots if "draft" in step.extra else []
                widths = tuple(int((level >= 0).sum()) for level in slots)
                if len(step.rows) == len(prompts):
                    yield Round(len(prompts), widths, int(step.tree.sizes.sum())), seconds

    def excesses(self, forwards: RoundCosts) -> Iterator[Excess]:
        """Yield the seconds beyond the forwards, by the number of rows and draft forwards."""
        groups: dict[tuple[int, int], list[float]] = {}
        for (rows, widths, verified), seconds in self.timed:
            spent = seconds - float(forwards.seconds(rows, widths, np.array([verified]))[0])
            groups.setdefault((rows, len(widths)), []).append(spent)
        for (rows, levels), excess in groups.items():
            yield Excess(rows, levels, len(excess), undisturbed(excess))


def undisturbed(seconds: Sequence[float]) -> float:
    """Return the quantile UNDISTURBED of repeated measurements: what else a machine does only adds to them."""
    return float(np.quantile(seconds, UNDISTURBED))


def eager(policy: Any, found: Profile, nodes: int) -> Iterator[Budget]:
    """Yield budgets by costs at which every level pays, of one level and of all: they decide as any other, and their
    rounds have trees. nodes: to verify at most, within the curves, beyond which these only guess."""
    free = RoundCosts(Curve((1,), (1.0,)), Curve((1,), (1e-9,)), Rest(), found)
    name = next((field.name for field in fields(policy) if field.name in LENGTHS), None)
    if name and policy.levels > 1:
        shallow = found._replace(widths=found.widths[:1], accepted=found.accepted[:1])
        yield Budget(replace(policy, **{name: 1}), nodes, free._replace(profile=shallow))
    yield Budget(policy, nodes, free)


def fit(found: Sequence[Excess]) -> Rest:
    """Return the rest of a round that fits best, by least squares; no part of it is negative."""
    if not found:
        return Rest()
    weights = np.sqrt([each.rounds for each in found])
    columns = np.array([counts(each.rows, each.levels) for each in found], float) * weights[:, None]
    seconds = np.array([each.seconds for each in found]) * weights
    best, least = Rest(), float((seconds**2).sum())
    for used in product((False, True), repeat=len(best)):  # the best fit without negative parts is one of these
        if any(used):
            solved, *_ = np.linalg.lstsq(columns[:, used], seconds, rcond=None)
            error = float(((columns[:, used] @ solved - seconds) ** 2).sum())
            if solved.min() >= 0 and error < least - 1e-9 * float((seconds**2).sum()):
                parts = np.zeros(len(best))
                parts[list(used)] = solved
                best, least = Rest(*map(float, parts)), error
    return best


def ticking(steps: Iterator[Step], device: torch.device, clock: Clock) -> Iterator[tuple[Step, float]]:
    """Yield the same steps, each with the seconds that it took, without the time that the reader spends on it."""
    start = now(device, clock)
    for step in steps:
        yield step, now(device, clock) - start
        start = now(device, clock)


def now(device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Return the clock's seconds after everything queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()
