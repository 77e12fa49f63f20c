"""Decoding time by stage: clocks around a policy's interface (`c2t.protocols`), put there by wrapping draft and policy,
so that every call of the policy is counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch

from c2t.decoding import DraftModel
from c2t.models.drafts.session import DraftSession
from c2t.protocols import Draft, NextTokenDistributions, Policy, Root, Session, session_of
from c2t.tree import Tree

T = TypeVar("T")
# Stages of the draft phase. forward: the draft's forwards, up to normalised logits, and its caches; select: top K and
# entropy of the distributions; classifier; trees: the policy's own work, ranking and reranking of nodes among it.
FORWARD, SELECT, CLASSIFIER, TREES = DRAFT = ("forward", "select", "classifier", "trees")
CLASSIFIERS = ("classifier", "decision")  # fields of policies that may hold a network


class Clock:
    """Seconds by stage. A stage within another one counts for itself only, so that stages add up to the whole."""

    def __init__(self, now: Callable[[], float]):
        self.now = now
        self.seconds: Counter[str] = Counter()
        self._open: list[tuple[str, float, float]] = []  # stage, when it began, seconds of stages within it

    def begin(self, stage: str) -> None:
        """Start a stage, within the one that is open."""
        self._open.append((stage, self.now(), 0.0))

    def end(self) -> None:
        """End the stage that was started last, and count its seconds."""
        stage, start, within = self._open.pop()
        whole = self.now() - start
        self.seconds[stage] += whole - within
        if self._open:
            outer, began, inside = self._open.pop()
            self._open.append((outer, began, inside + whole))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the block as this stage."""
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def timed(self, stage: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; the time to make them counts as this stage, the reader's time does not."""
        iterator = iter(items)
        while True:
            with self.stage(stage):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    @contextmanager
    def classifier_of(self, policy: Policy) -> Iterator[None]:
        """Count the calls of this policy's networks, and of those of a policy inside of it, as CLASSIFIER."""
        policies = (policy, getattr(policy, "policy", None))
        with ExitStack() as stack:
            for network in (getattr(owner, name, None) for owner in policies for name in CLASSIFIERS):
                if isinstance(network, torch.nn.Module):
                    before = network.register_forward_pre_hook(lambda *_: self.begin(CLASSIFIER))
                    after = network.register_forward_hook(lambda *_: self.end(), always_call=True)
                    stack.callback(before.remove)
                    stack.callback(after.remove)
            yield


class TimedPolicy:
    """Policy whose own work is counted as one stage."""

    def __init__(self, policy: Policy, clock: Clock, stage: str = TREES):
        self.policy, self.clock, self.stage = policy, clock, stage
        self.proposal, self.exact, self.levels = policy.proposal, policy.exact, policy.levels

    def session(self, draft: Session, rows: int, verifier: Any) -> Session:
        """See `c2t.protocols.Policy`."""
        return session_of(self.policy, draft, rows, verifier)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        with self.clock.classifier_of(self.policy), self.clock.stage(self.stage):
            return self.policy(draft, root)


class TimedDraft:
    """Draft model whose sessions are counted as FORWARD, and the reading of their distributions as SELECT."""

    def __init__(self, draft: DraftModel, clock: Clock):
        self.draft, self.clock = draft, clock

    def session(self) -> "TimedSession":
        """Return a new timed session for one generation."""
        return TimedSession(self.draft.session(), self.clock)


@DraftSession.register
class TimedSession:
    """Session of a TimedDraft; attributes that are not defined here are the inner session's."""

    grow_tree = None  # a fused draft phase has no separate stages

    def __init__(self, session: DraftSession, clock: Clock):
        self._session, self._clock = session, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def observe(self, *committed: Any) -> None:
        """See `DraftSession.observe`."""
        with self._clock.stage(FORWARD):
            self._session.observe(*committed)

    def expand(self, tree: Tree, slots: torch.Tensor) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        with self._clock.stage(FORWARD):
            return TimedDistributions(self._session.expand(tree, slots), self._clock)

    def fork(self, back: torch.Tensor) -> "TimedSession":
        """See `DraftSession.fork`."""
        with self._clock.stage(FORWARD):
            return TimedSession(self._session.fork(back), self._clock)


class TimedDistributions(NextTokenDistributions):
    """Distributions whose top K and entropy are timed. In the base class `top` and `entropy` call `topk_entropy`."""

    def __init__(self, rows: NextTokenDistributions, clock: Clock):
        vars(self).update(vars(rows))
        self._rows, self._clock = rows, clock

    def topk_entropy(self, k: int, m: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `NextTokenDistributions.topk_entropy`."""
        with self._clock.stage(SELECT):
            return self._rows.topk_entropy(k, m)
