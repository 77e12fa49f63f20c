"""Tree speculative decoding: a draft guesses, a policy shapes the guesses into a tree, and the target verifies it.

    the target reads the prompt, and writes the first token: the root        Verifier.prefill
    until the text ends:
        the draft reads what was committed                                   draft.observe
        a tree of cheap guesses grows under the root                         guess
        one forward of the target over all nodes: which of them would it     Verifier.verify
            have written itself? Their path is accepted and committed,
            with the target's next token behind it, the new root

Where candidates are ranked, the accepted path is the target's own choice at every step, so the text is exactly what the
target alone would have written; where they are sampled, it is so by its distribution (`c2t.verify`). A good tree only
makes rounds fewer. (MCSD+'s trees, which start from several tokens of the target's own, are the exception: see
`c2t.policies.mcsd_plus`.)
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t import display
from c2t.errors import InputError
from c2t.mixed_sampler import MixedSampler
from c2t.models.deferred import DeferredSession
from c2t.models.draft import DraftSession, NoDraft, WrappedSession, scale_of
from c2t.models.rehearsing import RehearsingSession
from c2t.models.target import TargetSession
from c2t.noisy_draft import NoisyDraft
from c2t.playable import check_rule
from c2t.policies.budget import Budget
from c2t.policies.mcsd_plus import Forks
from c2t.policies.pace import Pace
from c2t.policies.plain import Plain
from c2t.policies.rehearsed import ONLY, Rehearsed
from c2t.protocols import Policy, RecordingDraft, Root
from c2t.sampling import Sampling
from c2t.target_sampler import Processors, TargetSampler
from c2t.tree import Tree
from c2t.verify import Accepted


def decode(
    verifier: "Verifier", drafter: "DraftModel | None", policy: Policy, record: Sequence[str] = ()
) -> Iterator["Step"]:
    """Decode all texts of the verifier as one batch and yield a Step per round, the prefill first.

    A row leaves the batch with the round in which its text ends. record: what Steps carry besides of the draft, see
    `RecordingDraft`. Without a drafter only policies work that draft nothing.
    """
    with torch.inference_mode():  # never around a yield: what the caller does between two rounds is its own
        step, committed = verifier.prefill()  # the prompt, and the first root, which no tree has guessed
        policy = in_effect(policy, len(step.rows))
        draft = draft_session(drafter, policy, len(step.rows), verifier)
    while True:
        yield step
        going = verifier.unfinished(step)
        if not going:
            return
        with torch.inference_mode():
            if len(going) < len(step.rows):  # some texts have ended, and their rows leave
                rows = torch.tensor(going, device=step.rows.device)
                committed = committed.select(rows)
                draft.select(rows)
                verifier.select(rows)
            draft.observe(*committed)
            step, committed = speculate(draft, policy, verifier, record)


def speculate(
    draft: DraftSession | WrappedSession | NoDraft, policy: Policy, verifier: "Verifier", record: Sequence[str] = ()
) -> tuple["Step", "Committed"]:
    """Play one round: guess a tree and let the target verify it. Return the round's Step, and what it has committed,
    which the draft is to observe."""
    tree, shown = guess(draft, policy, verifier, record)
    verdict = verifier.verify(tree)  # one target forward over all nodes, and the path that it accepts
    committed = verdict.committed
    step = Step(
        rows=verdict.rows,
        position=verdict.position,
        tree=tree,
        accepted=verdict.accepted,
        tokens=committed.tokens[:, 1:],  # without the root, which the round before has committed
        count=committed.count,
        draft_passes=draft.passes,
        extra={**verdict.extra, "draft": shown} if record else verdict.extra,
    )
    return step, committed


def guess(
    draft: DraftSession | WrappedSession | NoDraft, policy: Policy, verifier: "Verifier", record: Sequence[str] = ()
) -> tuple[Tree, Any]:
    """Return a tree of guesses under the verifier's root, and the draft as the policy was shown it."""
    root = verifier.root()
    shown = hearing(draft, policy, root)  # the draft itself, unless the target is about to draw random numbers
    shown = RecordingDraft(shown, record) if record else shown
    tree = policy(shown, root._replace(noise=None))  # the draft's forwards are in here, one a level of the tree
    draft.refuse_nan()  # once a round, when the tree is there: a look at every level would wait for the device
    return tree, shown


class Step(NamedTuple):
    """The result of one round for each of its B rows.

    rows: which prompt each row serves. position: the root's absolute position (committed tokens without the root).
    tree, accepted: what was verified and which path of it was accepted; both None for the prefill, which draws the
    first root. tokens: the new tokens, count[r] real ones in row r (accepted ones, then the bonus token).
    draft_passes: draft forwards of the round. extra: what `record` asked for; the "tokenizer" where a decoder has one.
    """

    rows: Int[Tensor, " B"]
    position: Int[Tensor, " B"]
    tree: Tree | None
    accepted: Accepted | None
    tokens: Int[Tensor, "B m"]
    count: Int[Tensor, " B"]
    draft_passes: Int[Tensor, " B"]
    extra: Mapping[str, Any] = MappingProxyType({})

    def __repr__(self) -> str:
        rows = display.count(len(self.rows), "row")
        if self.tree is None or self.accepted is None:
            return f"Step({rows}, prefill)"
        verified, accepted = (display.few(each.tolist()) for each in (self.tree.sizes, self.accepted.length))
        passes = display.few(self.draft_passes.tolist())
        return f"Step({rows}, tokens verified: {verified}; accepted: {accepted}; draft passes: {passes})"

    def _repr_html_(self) -> str:
        """Return a drawing of the first row's tree; `c2t.show` draws other rows."""
        return display.show(self)._repr_html_()

    def by_row(self) -> list[tuple[int, list[int]]]:
        """Return the prompt that each row serves and the row's new tokens."""
        # In one piece: each look at a tensor waits for the device.
        together = torch.cat([self.rows[:, None], self.count[:, None], self.tokens], 1).tolist()
        return [(prompt, tokens[:count]) for prompt, count, *tokens in together]


class Committed(NamedTuple):
    """The tokens that a round has committed, for the draft to observe: the previous root and the count[r] tokens after
    it, the new root last; the target's features of all of them but the new root."""

    tokens: Int[Tensor, "B m+1"]
    features: Float[Tensor, "B m H"]
    count: Int[Tensor, " B"]

    @classmethod
    def along(cls, tree: Tree, features: Float[Tensor, "B n H"], accepted: Accepted) -> "Committed":
        """Read tokens and features off the accepted path, and put the bonus token behind it."""
        path, count = accepted.slots.clamp(min=0), accepted.length + 1
        tokens = append(tree.token.gather(1, path), accepted.bonus, count)
        return cls(tokens, features.gather(1, path[..., None].expand(-1, -1, features.shape[2])), count)

    def select(self, rows: Int[Tensor, " b"]) -> "Committed":
        """Keep these rows only."""
        return Committed(*(part[rows] for part in self))


class Verdict(NamedTuple):
    """A verifier's answer to a round's trees. position: of their roots; extra: joins the Step's."""

    rows: Int[Tensor, " B"]
    position: Int[Tensor, " B"]
    accepted: Accepted
    committed: Committed
    extra: Mapping[str, Any] = MappingProxyType({})


def first_step(rows: Int[Tensor, " B"], position: Int[Tensor, " B"], root: Int[Tensor, " B"]) -> Step:
    """Return the Step of the prefill, which draws the first roots and belongs to no round."""
    return Step(rows, position, None, None, root[:, None], torch.ones_like(root), torch.zeros_like(root))


@runtime_checkable
class Verifier(Protocol):
    """Judge of which guesses are the target's own tokens: the target (`TargetVerifier`), or a text that it has written
    before (`c2t.replay.lockstep.TextVerifier`)."""

    def prefill(self) -> tuple[Step, Committed]: ...

    def root(self) -> Root: ...

    def verify(self, tree: Tree) -> Verdict: ...

    def unfinished(self, step: Step) -> list[int]:
        """Take in the step's new tokens, once; return the batch rows whose texts go on after them."""
        ...

    def select(self, rows: Int[Tensor, " b"]) -> None: ...


@runtime_checkable
class TargetModel(Protocol):
    """A target: `c2t.models.target.Target`, or the same by CUDA graphs."""

    @property
    def config(self) -> Any: ...

    @property
    def device(self) -> torch.device: ...

    def session(self) -> TargetSession: ...


@runtime_checkable
class DraftModel(Protocol):
    """A draft model; see `c2t.models`."""

    def session(self) -> DraftSession: ...


class TargetVerifier:
    """The target itself verifies: one forward over each round's trees, which commits the path that it chooses.

    A text ends with the round in which it emits an `eos` token or its `max_new_tokens`-th token; that round's tokens
    may run past the cut (see `cut`). sequences: numbers of the rows' random streams (default 0, 1, ...). rule: how
    trees are verified (see `c2t.playable`). processors: what the target's logits go through first. keep_logits:
    verdicts carry the target's logits (B, n, V) of every slot as "logits".

    max_new_tokens, eos and sampling may be lists, with an entry for each prompt. Rows can `join` a verifier only if
    both were given lists of samplings.
    """

    def __init__(
        self,
        target: TargetModel,
        policy: Policy,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int | list[int],
        sampling: Sampling | list[Sampling],
        eos: frozenset[int] | list[frozenset[int]] = frozenset(),
        sequences: Sequence[int] | None = None,
        rule: str | None = None,
        processors: Processors | None = None,
        keep_logits: bool = False,
    ):
        self.rule, self.keep_logits = check_rule(policy, rule), keep_logits
        self.sampled = policy.proposal == "sampled"
        count = len(prompts)
        self.max_new_tokens, self.eos = of_each(max_new_tokens, count), of_each(eos, count)
        self.session = target.session()
        self.prompts, self.lengths = pad(prompts, target.device)
        vocabulary = target.config.vocab_size
        texts = self.prompts, self.lengths, sequences
        self.sampler: TargetSampler | MixedSampler
        self.fixed = isinstance(sampling, Sampling)  # no row joins later
        if isinstance(sampling, Sampling):
            self.sampler = TargetSampler(sampling, vocabulary, *texts, processors)
        else:
            assert processors is None, "rows with settings of their own have no processors"
            self.sampler = MixedSampler(sampling, vocabulary, *texts)
        self.forks = Forks(self.sampler) if self.rule == "longest-fork" else None
        self.rows, self.emitted = torch.arange(count, device=target.device), [0] * count
        self.token = self.rows.new_zeros(0)  # the coming root of each row, drawn by `prefill` and each round

    def prefill(self) -> tuple[Step, Committed]:
        """Run the prompts and draw the first roots."""
        verified = self.session.prefill(self.prompts, self.lengths)
        self.token = self.sampler.sample(verified.logits.values, self.lengths)
        if self.forks:
            self.forks.look_ahead(self.token, self.session.peek(self.token))  # one more forward (MCSD+, section 3.1)
        tokens = append(self.prompts, self.token, self.lengths)
        return first_step(self.rows, self.lengths, self.token), Committed(tokens, verified.features, self.lengths)

    def root(self) -> Root:
        """Return the root of the coming round."""
        root = self.sampler.root(self.token, self.session.lengths, self.sampled)
        if self.fixed:
            left = [most - new for most, new in zip(self.max_new_tokens, self.emitted, strict=True)]
            root = root._replace(left=left)
        return self.forks.root(root, self.session.lengths) if self.forks else root

    def verify(self, tree: Tree) -> Verdict:
        """Run the target over the trees, accept the path that it chooses, and keep that path in its cache."""
        position = self.session.lengths
        verified = self.session.verify(tree)
        if self.forks:
            accepted = self.forks.accept(tree, verified.logits.padded(), position)
        else:
            accepted = self.sampler.accept(tree, verified.logits, position, self.rule)
        committed = Committed.along(tree, verified.features, accepted)
        self.session.commit(accepted.slots, committed.count)
        self.token = accepted.bonus  # the target's next token is the new root
        extra = {"logits": verified.logits.padded()} if self.keep_logits else {}
        return Verdict(self.rows, position, accepted, committed, extra)

    def rehearsal(self) -> "TargetVerifier":
        """Return a verifier that goes on from here by the target's coarse form, the same weights in 4 bits, with the
        same random numbers and in the same cache (`c2t.policies.rehearsed`): what it commits is overwritten by the
        target's next forward, once the cache is rewound to here."""
        stage = copy.copy(self)
        stage.session, stage.sampler = self.session.rehearsal, self.sampler.rehearsal()
        stage.emitted, stage.keep_logits = list(self.emitted), False
        return stage

    def unfinished(self, step: Step) -> list[int]:
        """Count the step's new tokens; return the batch rows whose texts go on after them."""
        going = []
        for row, (_, tokens) in enumerate(step.by_row()):
            self.emitted[row] += len(tokens)
            if self.emitted[row] < self.max_new_tokens[row] and self.eos[row].isdisjoint(tokens):
                going.append(row)
        return going

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Go on with these rows of the batch only."""
        self.rows, self.token = self.rows[rows], self.token[rows]
        for column in ("max_new_tokens", "eos", "emitted"):
            values = getattr(self, column)
            setattr(self, column, [values[row] for row in rows.tolist()])
        for state in (self.session, self.sampler, self.forks):
            if state:
                state.select(rows)

    def join(self, other: "TargetVerifier") -> None:
        """Append the rows of another verifier of the same target and policy behind one's own; they keep the numbers
        that they have in `rows`. InputError for MCSD+, whose forks stay with the batch that they began in."""
        if self.forks:
            raise InputError("MCSDPlus decodes fixed batches only: no row can join one")
        self.rows, self.token = torch.cat([self.rows, other.rows]), torch.cat([self.token, other.token])
        self.max_new_tokens = self.max_new_tokens + other.max_new_tokens  # not in place: the lists are the caller's
        self.eos, self.emitted = self.eos + other.eos, self.emitted + other.emitted
        self.session.join(other.session)
        self.sampler.join(other.sampler)


def generate(
    target: TargetModel,
    drafter: DraftModel | None,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    eos: frozenset[int] = frozenset(),
    sequences: Sequence[int] | None = None,
    rule: str | None = None,
    record: Sequence[str] = (),
) -> Iterator[Step]:
    """Decode prompts with the target itself; see `TargetVerifier` for what the arguments mean, and `decode`. record may
    name "logits" too, the target's (B, n, V) of every slot."""
    verifier = TargetVerifier(
        target,
        policy,
        prompts,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        eos=eos,
        sequences=sequences,
        rule=rule,
        keep_logits="logits" in record,
    )
    steps = decode(verifier, drafter, policy, [name for name in record if name != "logits"])
    pace = pace_of(policy, len(prompts))
    return pace.watch(steps) if pace else steps


# What some drafts and policies need besides.


def in_effect(policy: Policy, rows: int) -> Policy:
    """Return the policy that plays rounds of at most so many rows: `Plain` in place of a budget that never drafts
    there, since a budget that is asked in every round takes a hundredth of a small target's."""
    return Plain() if isinstance(policy, Budget) and policy.never_drafts(rows) else policy


def draft_session(
    drafter: DraftModel | None, policy: Policy, rows: int, verifier: Verifier | None = None
) -> DraftSession | WrappedSession | NoDraft:
    """Return a new session of the draft for at most so many rows, or a stand-in where nothing is drafted. verifier: of
    the rows, which a rehearsal stands in for; InputError for one that cannot."""
    if isinstance(policy, Rehearsed):
        if not isinstance(verifier, TargetVerifier):
            raise InputError(f"Rehearsed: {ONLY}")
        return RehearsingSession(draft_session(drafter, policy.policy, rows), verifier.rehearsal, speculate, guess)
    if drafter is None or not in_effect(policy, rows).levels:
        return NoDraft()
    session = drafter.session()
    if isinstance(policy, Budget) and isinstance(session, DraftSession):  # it may guess nothing for many rounds
        session = DeferredSession(session)
    return session


def hearing(draft: Any, policy: Policy, root: Root) -> Any:
    """Return a round's draft as its policy is shown it. Where candidates are ranked and the target draws, it hears the
    noise of these draws, their random numbers, so that it guesses what will be drawn (`c2t.noisy_draft`). A rehearsal's
    own rounds see to that themselves."""
    if root.noise is None or policy.proposal != "ranked" or isinstance(draft, RehearsingSession):
        return draft
    if not hasattr(draft, "expand"):  # CUDA graphs grow trees by themselves
        return draft
    return NoisyDraft(draft, root.noise, scale_of(draft))


def pace_of(policy: Policy, rows: int) -> Pace | None:
    """Return what rounds of at most so many rows are to be timed for, None if nothing asks for their seconds."""
    policy = in_effect(policy, rows)
    return policy.pace if isinstance(policy, Budget) else None


# Texts as tensors and lists.


def pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "B P"], Int[Tensor, " B"]]:
    """Return prompts as one tensor, padded on the right, and their lengths."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    tokens = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(list(prompt), device=device)
    return tokens, lengths


def of_each(value: Any, count: int) -> list[Any]:
    """Return a list as it is, and any other value `count` times."""
    return value if isinstance(value, list) else [value] * count


def append(tokens: Int[Tensor, "B m"], last: Int[Tensor, " B"], count: Int[Tensor, " B"]) -> Int[Tensor, "B m+1"]:
    """Return tokens[r, :count[r]] followed by last[r]."""
    last = last[:, None]
    return torch.cat([tokens, last], 1).scatter(1, count[:, None], last)


def cut(tokens: list[int], max_new_tokens: int, eos: frozenset[int]) -> list[int]:
    """Return new tokens up to where plain decoding ends: the first `eos` token, or max_new_tokens."""
    tokens = tokens[:max_new_tokens]
    ends = [place for place, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens
