"""Tree speculative decoding: a draft guesses, a policy shapes the guesses into a tree, and the target verifies it.

    the target reads the prompt, and generates its first token: the root     Verifier.prefill
    until the sequence ends:
        the draft reads what was committed                                   draft.observe
        a tree of cheap guesses grows under the root                         guess
        one forward of the target over all nodes: which of them would it     Verifier.verify
            have generated itself? Their path is accepted and committed,
            with the target's next token after it, the new root

Where candidates are ranked, the accepted path is the target's own choice at every step, so the text is exactly what the
target alone would have generated; where they are sampled, it is so by its distribution (`c2t.verify`). A good tree only
makes rounds fewer. The loop knows no policy and no model: a policy that needs more than a draft and a root brings a
session of its own (`open_session`).
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.kernels.noise import Noise
from c2t.output import tree_repr
from c2t.protocols import Policy, RecordingDraft, Root, Session, session_of
from c2t.sessions.coupled import coupled
from c2t.sessions.stateless import NoDraft
from c2t.tree import Tree
from c2t.verify import Accepted


def decode(
    verifier: "Verifier", drafter: "DraftModel | None", policy: Policy, record: Sequence[str] = ()
) -> Iterator["Step"]:
    """Decode all sequences of the verifier as one batch and yield a Step per round, the prefill first.

    A row leaves the batch with the round in which its sequence ends. record: what Steps carry besides of the draft, see
    `RecordingDraft`. Without a drafter only policies work that draft nothing.
    """
    with torch.inference_mode():  # never around a yield: what the caller does between two rounds is its own
        step, committed = verifier.prefill()  # the prompt, and the first root, which no tree has guessed
        draft = open_session(drafter, policy, len(step.rows), verifier)
    while True:
        yield step
        going = verifier.unfinished(step)
        if not going:
            return
        with torch.inference_mode():
            if len(going) < len(step.rows):  # some sequences have ended, and their rows leave
                rows = torch.tensor(going, device=step.rows.device)
                committed = committed.select(rows)
                draft.select(rows)
                verifier.select(rows)
            draft.observe(*committed)
            step, committed = speculate(draft, policy, verifier, record)


def open_session(drafter: "DraftModel | None", policy: Policy, rows: int, verifier: "Verifier") -> Session:
    """Return a new session of the draft for at most so many rows, as the policy takes it (`c2t.protocols.Policy`); a
    stand-in where nothing is drafted."""
    draft = drafter.session() if drafter is not None and policy.levels else NoDraft()
    return session_of(policy, coupled(draft, policy, verifier), rows, verifier)


def speculate(
    draft: Session, policy: Policy, verifier: "Verifier", record: Sequence[str] = ()
) -> tuple["Step", "Committed"]:
    """Run one round: guess a tree and let the target verify it. Return the round's Step, and what it has committed,
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
    draft.end(step)
    return step, committed


def guess(
    draft: Session, policy: Policy, verifier: "Verifier", record: Sequence[str] = ()
) -> tuple[Tree, Session | RecordingDraft]:
    """Return a tree of guesses under the verifier's root, and the draft as the policy was shown it."""
    shown = RecordingDraft(draft, record) if record else draft
    tree = policy(shown, verifier.root())  # the draft's forwards are in here, one a level of the tree
    draft.refuse_nan()  # once a round, when the tree is there: a look at every level would wait for the device
    return tree, shown


class Step(NamedTuple):
    """The result of one round for each of its B rows.

    rows: which prompt each row serves. position: the root's absolute position (committed tokens without the root).
    tree, accepted: what was verified and which path of it was accepted; both None for the prefill, which samples the
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
        return tree_repr.round_line(self)

    def _repr_html_(self) -> str:
        """Return a drawing of the first row's tree; `c2t.show` draws other rows."""
        return tree_repr.show(self)._repr_html_()

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
        """Read tokens and features off the accepted path, and put the bonus token after it."""
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
    """Return the Step of the prefill, which samples the first roots and belongs to no round."""
    return Step(rows, position, None, None, root[:, None], torch.ones_like(root), torch.zeros_like(root))


@runtime_checkable
class Verifier(Protocol):
    """Judge of which guesses are the target's own tokens: the target
    (`c2t.verification.target_verifier.TargetVerifier`), or a text that it has generated before
    (`c2t.replay.lockstep.TextVerifier`).

    live: the target itself runs. draws: it may sample, with random numbers that a draft can share.
    """

    live: bool
    draws: bool

    def prefill(self) -> tuple[Step, Committed]: ...

    def root(self) -> Root: ...

    def noise(self) -> Noise | None:
        """Return the noise of the coming round's draws; None where all rows are greedy."""
        ...

    def left(self) -> Sequence[int] | None:
        """Return how many tokens each row may still get; None where other rows take the places of those that end."""
        ...

    def verify(self, tree: Tree) -> Verdict: ...

    def unfinished(self, step: Step) -> list[int]:
        """Take in the step's new tokens, once; return the batch rows whose sequences go on after them."""
        ...

    def select(self, rows: Int[Tensor, " b"]) -> None: ...


@runtime_checkable
class DraftModel(Protocol):
    """A draft model; see `c2t.models`."""

    def session(self) -> Session: ...


def append(tokens: Int[Tensor, "B m"], last: Int[Tensor, " B"], count: Int[Tensor, " B"]) -> Int[Tensor, "B m+1"]:
    """Return tokens[r, :count[r]] followed by last[r]."""
    last = last[:, None]
    return torch.cat([tokens, last], 1).scatter(1, count[:, None], last)


def cut(tokens: list[int], max_new_tokens: int, eos: frozenset[int]) -> list[int]:
    """Return new tokens up to where plain decoding ends: the first `eos` token, or max_new_tokens."""
    tokens = tokens[:max_new_tokens]
    ends = [index for index, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens
