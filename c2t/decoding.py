"""Tree speculative decoding: a draft proposes tokens, a policy shapes them into a tree, and the target verifies it.

    the target runs the prompt and generates the first token, the root       Verifier.prefill
    until the sequence ends:
        the draft observes the committed tokens                              draft.observe
        the policy grows a tree of drafted tokens under the root             guess
        one target forward over all nodes finds the path that the target     Verifier.verify
            accepts; the path is committed, and the target's next token
            after it is the new root

With ranked candidates every accepted token is the target's own choice, so the text equals plain decoding token for
token. With sampled candidates the text has the target's distribution (`c2t.verify`). Trees change only the number of
rounds. No policy and no model is named here. A policy that needs more than a root brings a session (`open_session`).
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
from c2t.sessions.masked import masked
from c2t.sessions.stateless import NoDraft
from c2t.tree import Tree
from c2t.verify import Accepted


def decode(
    verifier: "Verifier", drafter: "DraftModel | None", policy: Policy, record: Sequence[str] = ()
) -> Iterator["Step"]:
    """Decode all sequences of the verifier as one batch. Yield a Step for the prefill, then one per round.

    A row leaves the batch after the round in which its sequence ends. drafter: None is for policies that draft nothing.
    record: names of the draft's values that Steps carry, see `RecordingDraft`.
    """
    with torch.inference_mode():  # never around a yield: between two rounds the caller may use gradients
        step, committed = verifier.prefill()  # the prompt and the first root
        draft = open_session(drafter, policy, len(step.rows), verifier)
    while True:
        yield step
        if not (unfinished := verifier.unfinished(step)):
            return
        with torch.inference_mode():
            if len(unfinished) < len(step.rows):  # some sequences have ended, and their rows leave
                rows = torch.tensor(unfinished, device=step.rows.device)
                committed = committed.select(rows)
                draft.select(rows)
                verifier.select(rows)
            draft.observe(*committed)
            step, committed = speculate(draft, policy, verifier, record)


def open_session(drafter: "DraftModel | None", policy: Policy, rows: int, verifier: "Verifier") -> Session:
    """Return a new draft session for up to `rows` rows, wrapped by the policy's session if it has one
    (`c2t.protocols.Policy`). For a policy that drafts nothing it is a stand-in."""
    draft = drafter.session() if drafter is not None and policy.levels else NoDraft()
    return session_of(policy, masked(coupled(draft, policy, verifier), verifier), rows, verifier)


def speculate(
    draft: Session, policy: Policy, verifier: "Verifier", record: Sequence[str] = ()
) -> tuple["Step", "Committed"]:
    """Run one round: draft a tree and let the verifier verify it. Return the Step and the committed tokens, which the
    draft must observe before the next round."""
    tree, recorder = guess(draft, policy, verifier, record)
    verdict = verifier.verify(tree)  # one target forward over all nodes
    committed = verdict.committed
    step = Step(
        rows=verdict.rows,
        position=verdict.position,
        tree=tree,
        accepted=verdict.accepted,
        tokens=committed.tokens[:, 1:],  # without the root, a token of the previous round
        count=committed.count,
        draft_passes=draft.passes,
        extra={**verdict.extra, "draft": recorder} if record else verdict.extra,
    )
    return step, committed


def guess(
    draft: Session, policy: Policy, verifier: "Verifier", record: Sequence[str] = ()
) -> tuple[Tree, Session | RecordingDraft]:
    """Return the policy's tree under the verifier's root, and the draft that it expanded: a `RecordingDraft` with
    `record`."""
    recorder = RecordingDraft(draft, record) if record else draft
    tree = policy(recorder, verifier.root())  # runs the draft's forwards, one per level of the tree
    draft.refuse_nan()  # once per round: a check at every level would wait for the device each time
    return verifier.completed(tree), recorder


class Step(NamedTuple):
    """The result of one round for each of its B rows.

    rows: each row's prompt, by number. position: the root's absolute position (committed tokens without the root).
    tree, accepted: the verified tree and its accepted path; both None for the prefill, which samples the first root.
    tokens: the new tokens, accepted ones and then the bonus token; row r has count[r], the others are padding.
    draft_passes: draft forwards of the round. extra: the recorded values; "tokenizer", if a decoder has one.
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
        """Return a picture of the first row's tree; `c2t.show` can show other rows."""
        return tree_repr.show(self)._repr_html_()

    def by_row(self) -> list[tuple[int, list[int]]]:
        """Return each row's prompt number and new tokens."""
        # One copy to the host instead of three: each waits for the device.
        together = torch.cat([self.rows[:, None], self.count[:, None], self.tokens], 1).tolist()
        return [(prompt, tokens[:count]) for prompt, count, *tokens in together]


class Committed(NamedTuple):
    """Tokens that a round has committed, for the draft to observe.

    tokens: the previous root, then count[r] tokens, of which the last is the new root. features: the target's hidden
    states of all these tokens except the new root, which it has not run yet.
    """

    tokens: Int[Tensor, "B m+1"]
    features: Float[Tensor, "B m H"]
    count: Int[Tensor, " B"]

    @classmethod
    def along(cls, tree: Tree, features: Float[Tensor, "B n H"], accepted: Accepted) -> "Committed":
        """Return tokens and features of the accepted path, with the bonus token after it."""
        path, count = accepted.slots.clamp(min=0), accepted.length + 1
        tokens = append(tree.token.gather(1, path), accepted.bonus, count)
        return cls(tokens, features.gather(1, path[..., None].expand(-1, -1, features.shape[2])), count)

    def select(self, rows: Int[Tensor, " b"]) -> "Committed":
        """Keep these rows only."""
        return Committed(*(part[rows] for part in self))


class Verdict(NamedTuple):
    """A verifier's result for one round. position: of its roots. extra: values that the Step carries."""

    rows: Int[Tensor, " B"]
    position: Int[Tensor, " B"]
    accepted: Accepted
    committed: Committed
    extra: Mapping[str, Any] = MappingProxyType({})


def first_step(rows: Int[Tensor, " B"], position: Int[Tensor, " B"], root: Int[Tensor, " B"]) -> Step:
    """Return the Step of the prefill, which samples the first roots."""
    return Step(rows, position, None, None, root[:, None], torch.ones_like(root), torch.zeros_like(root))


@runtime_checkable
class Verifier(Protocol):
    """Verifies the trees of a batch: the target (`c2t.verification`), or a text that it has generated (`c2t.replay`).
    live: the target runs. stochastic: it may sample, by numbers that drafts can share. prefix: tokens before roots."""

    live: bool
    stochastic: bool
    prefix: Sequence[int]

    def prefill(self) -> tuple[Step, Committed]:
        """Run the prompts and sample the first roots."""

    def root(self) -> Root:
        """Return the roots of the next round's trees."""

    def noise(self) -> Noise | None:
        """Return the Gumbel noise of the next round's samples; None if all rows are greedy."""

    def left(self) -> Sequence[int] | None:
        """Return how many tokens each row may still get; None if new rows replace those that end."""

    def completed(self, tree: Tree) -> Tree:
        """Return the trees without what may not follow, and with what must."""

    def verify(self, tree: Tree) -> Verdict:
        """Verify one round's trees and commit the accepted paths."""

    def unfinished(self, step: Step) -> list[int]:
        """Count the step's new tokens; return the rows whose sequences have not ended. Call it once per Step."""

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""


@runtime_checkable
class DraftModel(Protocol):
    """A draft model; see `c2t.models`."""

    def session(self) -> Session:
        """Return a new session for one batch."""


def append(tokens: Int[Tensor, "B m"], last: Int[Tensor, " B"], count: Int[Tensor, " B"]) -> Int[Tensor, "B m+1"]:
    """Return tokens[r, :count[r]] followed by last[r]."""
    last = last[:, None]
    return torch.cat([tokens, last], 1).scatter(1, count[:, None], last)


def cut(tokens: list[int], max_new_tokens: int, eos: frozenset[int]) -> list[int]:
    """Return the new tokens up to the end of plain decoding: the first `eos` token, or max_new_tokens."""
    tokens = tokens[:max_new_tokens]
    ends = [index for index, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens
