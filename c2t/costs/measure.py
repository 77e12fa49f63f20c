"""Measurement of the seconds of a round on this machine, and of the accepted tokens of a policy's drafts on a pair."""

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
from jaxtyping import Int
from torch import Tensor

from c2t.decoding import Step
from c2t.kernels.budget import Candidates, probabilities
from c2t.kernels.decoder_layers import edges
from c2t.kernels.level_plan import LevelPlan
from c2t.kernels.select import SelectLimits
from c2t.models.loading.load import Pair
from c2t.policies.budget import Budget
from c2t.policies.plain import Plain
from c2t.policies.round_costs import Attention, Curve, Overhead, Profile, RoundCosts, counts
from c2t.protocols import Policy, Root, grow_tree_of
from c2t.replay.lockstep import Continuation, replay, write_continuations
from c2t.sampling import Sampling
from c2t.tree import Nodes, Tree
from c2t.verification.target_verifier import generate, pad

TEXTS, NEW_TOKENS = 16, 24  # measured texts, and new tokens of each
ROWS = (1, 4, 16)  # batch sizes of timed rounds
SINGLE_TEXTS = 3  # timed texts at batch size 1, one after the other
REPEATS = 6  # measurements of each forward
PHASE_REPEATS = 3  # timed draft phases in one measurement
# Timed sizes of forwards, in tokens of all rows: round numbers, and both sides of each step in the cost.
VERIFIED = tuple(sorted({1, 2, 4, 8, 64, 96, 128, 192, 256} | edges(50)))
DRAFTED = tuple(sorted({1, 2, 4, 8, 24, 32, 48, 64, 96, 160} | edges(20)))
FURTHER, MANY = 1024, 16  # tokens of a longer prefix beyond a short one's, and of the larger of two forwards after it
BRANCHING = 4  # children of each node in timed trees: neither a chain nor a fan
UNDISTURBED = 0.25  # quantile that stands for repeated measurements
TOKENS_PER_ROUND = 2  # new tokens per row of a round with trees, about
TYPICAL = 4  # verified tokens per row of timed rounds, within the curves, which are extrapolated beyond
# Verified nodes per row at which the yield is measured.
NODES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0)
LENGTHS = ("levels", "length")  # settings that bound the depth of a policy's trees
Clock = Callable[[], float]


class OverheadSample(NamedTuple):
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

    The texts are greedy. Forwards and real rounds take turns, `repeats` times, because the speed of a machine drifts
    and the overhead of a round is a small difference of the two.
    """
    texts = write_continuations(
        pair.target, prompts[:TEXTS], max_new_tokens=NEW_TOKENS, beyond=policy.levels + 1, sampling=Sampling()
    )
    timer = ForwardTimer(pair, texts[0], clock, getattr(policy, "level_plan", None))
    forwards, later = Forwards(timer), Forwards(timer.further(FURTHER), (1, MANY), ())
    decoding = [
        RealRounds(pair, budget, batches(prompts, rows), repeats, clock)
        for rows in ROWS
        for budget in (Plain(), *shallow_and_deep(policy, TYPICAL * rows))
    ]
    for _ in range(repeats):
        forwards.time()
        later.time()
        for rounds in decoding:
            rounds.run_turn()
    verify, draft = forwards.curve("verify"), forwards.curve("draft")
    attention = attention_costs(verify, later.curve("verify"), int(timer.lengths), int(later.timer.lengths))
    costs = RoundCosts(verify, draft, Overhead(), profile(pair, policy, texts), attention)
    return costs._replace(overhead=fit([sample for rounds in decoding for sample in rounds.overhead_samples(costs)]))


def attention_costs(near: Curve, far: Curve, after: int, until: int) -> Attention:
    """Return what each token of a prefix adds to a forward of one row, from forwards after a prefix of `after` tokens
    and after one of `until`."""
    if until <= after:
        return Attention(after=after)
    sizes = np.array(far.sizes)
    more = np.maximum(np.array(far.seconds) - near.at(sizes), 0) / (until - after)
    per_verified = max(float(more[-1] - more[0]), 0.0) / float(sizes[-1] - sizes[0])
    return Attention(max(float(more[0]) - per_verified, 0.0), per_verified, after)


def batches(prompts: Sequence[Sequence[int]], rows: int) -> list[Sequence[Sequence[int]]]:
    """Return the prompts of timed rounds in batches of `rows`: one batch, or SINGLE_TEXTS of one."""
    return [prompts[at : at + rows] for at in range(0, min(max(SINGLE_TEXTS, rows), len(prompts)), rows)]


def shallow_and_deep(policy: Any, nodes: int) -> Iterator[Budget]:
    """Yield budgets of so many nodes that draft one level, and all levels. They draft even where that is not
    profitable, so that its costs are measured."""
    name = next((field.name for field in fields(policy) if field.name in LENGTHS), None)
    if name and policy.levels > 1:
        yield Budget(replace(policy, **{name: 1}), nodes)
    if policy.levels:
        yield Budget(policy, nodes)


def profile(pair: Pair, policy: Policy, texts: Sequence[Continuation]) -> Profile:
    """Return the yield of a policy's trees, by replay of these texts.

    All rounds' nodes are sorted together by their joint probability, as a budget sorts those of a batch.
    """
    probability, depth, accepted = [], [], []
    widths, rounds = np.zeros(max(policy.levels, 1)), 0
    for step in replay(pair.draft, policy, texts, record=("slots",)):
        if step.tree is None:
            continue
        rounds += len(step.rows)
        for level, slots in enumerate(step.extra["draft"].slots):
            widths[level] += int((slots >= 0).sum())
        tree, path = step.tree, step.accepted.slots
        likely = probabilities(Candidates(tree.log_joint, tree.alive, tree.parent, ()))
        taken = torch.zeros_like(tree.token).scatter_(1, path.clamp(min=0), 1).cpu().numpy()
        probability.append(likely[likely >= 0])
        depth.append(tree.depth.cpu().numpy()[likely >= 0])
        accepted.append(taken[likely >= 0] > 0)
    if not rounds:
        return Profile((1.0,) * policy.levels, NODES, ((0.0,) * len(NODES),) * policy.levels)
    order = np.argsort(-np.concatenate(probability), kind="stable")
    depths, won = (np.concatenate(parts)[order] for parts in (depth, accepted))
    gains = []
    for levels in range(1, policy.levels + 1):
        total = np.concatenate([[0], won[depths < levels].cumsum()])
        gains.append(tuple(float(total[min(int(n * rounds), len(total) - 1)] / rounds) for n in NODES))
    return Profile(tuple(map(float, widths[: policy.levels] / rounds)), NODES, tuple(gains))


class Forwards:
    """Seconds of the target's and of the draft's forwards over so many tokens of one row. The overhead of further rows
    is measured in real rounds. verified, drafted: the numbers of tokens."""

    def __init__(
        self, timer: "ForwardTimer", verified: Sequence[int] | None = None, drafted: Sequence[int] | None = None
    ):
        self.timer = timer
        self.sizes = {
            "verify": VERIFIED if verified is None else verified,
            "draft": DRAFTED if drafted is None else drafted,
        }
        self.seconds: dict[tuple[str, int], list[float]] = {}

    def time(self) -> None:
        """Time every forward once."""
        for kind, sizes in self.sizes.items():
            for size in sizes:
                self.seconds.setdefault((kind, size), []).append(getattr(self.timer, kind)(size))

    def curve(self, kind: str) -> Curve:
        """Return the seconds of the target's ("verify") or the draft's ("draft") forwards."""
        sizes = self.sizes[kind]
        return Curve(tuple(sizes), envelope([undisturbed(self.seconds[kind, size]) for size in sizes]))


def envelope(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return for each size the least seconds of it and of all larger ones: where fewer tokens took longer, the machine
    was busy."""
    return tuple(map(float, np.minimum.accumulate(np.array(seconds)[::-1])[::-1]))


class ForwardTimer:
    """Times single forwards after the first half of a text. plan: the static plan of a policy, whose trees the draft
    grows fused, where it can."""

    def __init__(self, pair: Pair, text: Continuation, clock: Clock, plan: LevelPlan | None = None):
        self.clock, self.plan = clock, plan
        middle = (text.prompt + text.end) // 2
        tokens, _ = pad([text.tokens.tolist()], pair.target.device)
        self.lengths, self.root = tokens.new_tensor([middle]), tokens[:, middle]
        self.session = pair.target.session()
        self.session.prefill(tokens[:, :middle], self.lengths)
        self.drafted = pair.draft.session()
        self.drafted.observe(tokens[:, : middle + 1], text.features[None, :middle], self.lengths)

    @torch.inference_mode()
    def further(self, tokens: int) -> "ForwardTimer":
        """Return a timer of the target's forwards after so many more tokens, or after as many as the target reads."""
        timer, room = copy.copy(self), self.session.target.max_positions - max(VERIFIED)
        count = max(min(int(self.lengths) + tokens, room), int(self.lengths))
        timer.lengths, timer.session = self.lengths.new_tensor([count]), self.session.target.session()
        timer.session.prefill(self.root.expand(1, count), timer.lengths)
        return timer

    @torch.inference_mode()
    def verify(self, size: int) -> float:
        """Return the target's seconds over trees of `size` tokens."""
        session = copy.copy(self.session)
        session.cache = session.cache.copy()  # its growth does not change the original
        tree = regular(self.root, size, BRANCHING)
        start = self._now()
        session.verify(tree)
        return self._now() - start

    @torch.inference_mode()
    def draft(self, width: int) -> float:
        """Return the draft's seconds over a level of `width` tokens under the root."""
        if self.plan is not None and (single := self._phase(width, 1)) is not None:
            return max(self._phase(width, 2) - single, sys.float_info.min)
        tree = regular(self.root, width + 1, width)
        session = self.drafted.fork(torch.zeros(len(tree.token), dtype=torch.long, device=self.root.device))
        slots = torch.arange(width + 1, device=self.root.device).expand(len(tree.token), -1)
        session.expand(tree, slots[:, :1])
        start = self._now()
        session.expand(tree, slots[:, 1:])
        return self._now() - start

    def _phase(self, width: int, levels: int) -> float | None:
        """Return the least seconds of several fused draft phases; None for a draft that cannot fuse them. The level's
        cost is a difference of two of them, to which other processes would add noise of either sign."""
        session, root = self.drafted.fork(torch.zeros_like(self.lengths)), Root(self.root, None)
        plan = self.plan._replace(K=width, width=width, levels=levels, limits=SelectLimits(0.0), reranked=None)
        seconds = []
        for _ in range(1 + PHASE_REPEATS):  # the first run allocates its memory
            start = self._now()
            if grow_tree_of(session, plan, root) is None:
                return None
            seconds.append(self._now() - start)
        return min(seconds[1:])

    def _now(self) -> float:
        return now(self.root.device, self.clock)


def regular(root: Int[Tensor, " B"], size: int, branching: int) -> Tree:
    """Return trees of `size` tokens in which every node has `branching` children, level by level."""
    parents = [(slot - 1) // branching for slot in range(1, size)]
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
    """Timed rounds of a policy that decodes batches one after the other, in about `turns` turns."""

    def __init__(self, pair: Pair, policy: Any, batches: Sequence[Sequence[Sequence[int]]], turns: int, clock: Clock):
        self.timed: list[tuple[int, list[int], int, float]] = []
        rounds = len(batches) * NEW_TOKENS / (TOKENS_PER_ROUND if policy.levels else 1)
        self.rounds_per_turn = ceil(rounds / turns)
        self.steps = self._decode(pair, policy, batches, clock)

    def run_turn(self) -> None:
        """Run the rounds of a turn, or as many as are left."""
        self.timed += islice(self.steps, self.rounds_per_turn)

    def _decode(
        self, pair: Pair, policy: Any, batches: Sequence[Sequence[Sequence[int]]], clock: Clock
    ) -> Iterator[tuple[int, list[int], int, float]]:
        """Yield each round's rows, the tokens of its draft forwards, those verified, and its seconds. Each
        batch's first round is left out, in which the draft reads the prompts."""
        for prompts in batches:
            steps = generate(
                pair.target,
                pair.draft,
                policy,
                prompts,
                max_new_tokens=NEW_TOKENS,
                sampling=Sampling(),
                record=("slots",) if policy.levels else (),
            )
            for step, seconds in islice(ticking(steps, pair.target.device, clock), 2, None):
                slots = step.extra["draft"].slots if "draft" in step.extra else []
                widths = [int((level >= 0).sum()) for level in slots]
                if len(step.rows) == len(prompts):
                    yield len(prompts), widths, int(step.tree.sizes.sum()), seconds

    def overhead_samples(self, forwards: RoundCosts) -> Iterator[OverheadSample]:
        """Yield the seconds outside the forwards, by the number of rows and draft forwards."""
        groups: dict[tuple[int, int], list[float]] = {}
        for rows, widths, verified, seconds in self.timed:
            overhead = seconds - forwards.seconds(rows, widths, verified)
            groups.setdefault((rows, len(widths)), []).append(overhead)
        for (rows, levels), overheads in groups.items():
            yield OverheadSample(rows, levels, len(overheads), undisturbed(overheads))


def undisturbed(seconds: Sequence[float]) -> float:
    """Return the quantile UNDISTURBED of repeated measurements: other processes only add to them."""
    return float(np.quantile(seconds, UNDISTURBED))


def fit(samples: Sequence[OverheadSample]) -> Overhead:
    """Return the overhead that fits best, by least squares; no part of it is negative."""
    if not samples:
        return Overhead()
    weights = np.sqrt([sample.rounds for sample in samples])
    columns = np.array([counts(sample.rows, sample.levels) for sample in samples], float) * weights[:, None]
    seconds = np.array([sample.seconds for sample in samples]) * weights
    best, least = Overhead(), float((seconds**2).sum())
    for used in product((False, True), repeat=len(best)):  # the best fit without negative parts is one of these
        if any(used):
            solved, *_ = np.linalg.lstsq(columns[:, used], seconds, rcond=None)
            error = float(((columns[:, used] @ solved - seconds) ** 2).sum())
            if solved.min() >= 0 and error < least - 1e-9 * float((seconds**2).sum()):
                parts = np.zeros(len(best))
                parts[list(used)] = solved
                best, least = Overhead(*map(float, parts)), error
    return best


def ticking(steps: Iterator[Step], device: torch.device, clock: Clock) -> Iterator[tuple[Step, float]]:
    """Yield the same steps, each with the seconds that it took, without the consumer's time."""
    start = now(device, clock)
    for step in steps:
        yield step, now(device, clock) - start
        start = now(device, clock)


def now(device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Return the clock's seconds after everything queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()
