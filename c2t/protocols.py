"""The interface between policies and drafts: a policy builds a tree by asking a draft to expand slots of it.

Policies never see a model.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from c2t.caches.ragged import Ragged
from c2t.errors import InputError, short_repr
from c2t.kernels.rows import rank
from c2t.tree import Tree


class Root(NamedTuple):
    """The last committed token, under which a tree grows.

    key: 64 random bits (see `c2t.sampling.stream_key`) for policies that sample candidates; for others it may be None.
    """

    token: Int[Tensor, " B"]
    key: Int[Tensor, " B"] | None


class DraftVocabulary(NamedTuple):
    """The tokens that a draft can propose. tokens: ids in ascending order, out of the target's `size` tokens.

    oov_ids: for each row, further tokens that occur in its text (`c2t.models.drafts.oov_tokens`). Their logits come
    after those of `tokens`. Rows with fewer are padded by -1, with a logit of -inf. None: no row has any.
    """

    tokens: Int[Tensor, " v"]
    size: int
    oov_ids: Int[Tensor, "B E"] | None = None

    def ids(self, index: Int[Tensor, "*S K"], row: Int[Tensor, " S"] | None) -> Int[Tensor, "*S K"]:
        """Return the tokens of logits at these indices. row: of each distribution; None: their shape is (B, F)."""
        if self.oov_ids is None:
            return self.tokens[index]
        common, oov = len(self.tokens), self._oov_ids_at(row, index)
        oov = oov.gather(-1, (index - common).clamp(min=0))
        return torch.where(index < common, self.tokens[index.clamp(max=common - 1)], oov)

    def indices(self, ids: Int[Tensor, "*S K"], row: Int[Tensor, " S"] | None) -> Int[Tensor, "*S K"]:
        """Return the indices of these tokens' logits; the draft must have all of the tokens."""
        index = torch.searchsorted(self.tokens, ids)
        if self.oov_ids is None:
            return index
        same = ids[..., None] == self._oov_ids_at(row, ids)[..., None, :]
        return torch.where(same.any(-1), len(self.tokens) + same.int().argmax(-1), index)

    def spread(self, logits: Float[Tensor, "*S w"], row: Int[Tensor, " S"] | None) -> Float[Tensor, "*S V"]:
        """Return logits of the whole vocabulary; -inf for tokens that the draft cannot propose."""
        full, common = logits.new_full((*logits.shape[:-1], self.size), float("-inf")), len(self.tokens)
        full[..., self.tokens] = logits[..., :common]
        if self.oov_ids is None:
            return full
        return full.scatter_reduce(-1, self._oov_ids_at(row, logits).clamp(min=0), logits[..., common:], "amax")

    def part(self, logits: Float[Tensor, "B F V"]) -> Float[Tensor, "B F w"]:
        """Return the logits of this part of the whole vocabulary: the inverse of `spread`."""
        common = logits[..., self.tokens]
        if self.oov_ids is None:
            return common
        oov = self._oov_ids_at(None, logits)
        oov_logits = logits.gather(-1, oov.clamp(min=0)).masked_fill(oov < 0, float("-inf"))
        return torch.cat([common, oov_logits], -1)

    def _oov_ids_at(self, row: Int[Tensor, " S"] | None, like: Shaped[Tensor, "*S n"]) -> Int[Tensor, "*S E"]:
        """Return the `oov_ids` of each distribution's row."""
        oov = self.oov_ids[:, None] if row is None else self.oov_ids[row]
        return oov.expand(*like.shape[:-1], -1)


class NextTokenDistributions:
    """The draft's next-token distributions after F expanded slots of each of B trees, in nats.

    Half-precision logits are converted to float32: sums of half-precision log-probabilities often tie or change order.

    hidden: the draft's last hidden states at these slots, None if it has none. vocabulary: tokens of the logits, None
    for all; other tokens have probability 0. rows: the slots of a packed batch of S logits, row after row; any other
    slot has the distribution of some slot among them. None: the logits are (B, F, v). confidence: the draft's own guess
    at the probability that the next token is accepted, one number for each slot; None if it makes none.
    """

    rows: Ragged | None = None
    confidence: Float[Tensor, "B F"] | None = None

    def __init__(
        self,
        logits: Float[Tensor, "B F v"] | Float[Tensor, "S v"],
        hidden: Float[Tensor, "B F H"] | None = None,
        vocabulary: DraftVocabulary | None = None,
        rows: Ragged | None = None,
    ):
        self.hidden, self.vocabulary, self.rows = hidden, vocabulary, rows
        self._drafted = logits

    def with_logits(self, logits: Float[Tensor, "*S w"], rows: Ragged | None) -> "NextTokenDistributions":
        """Return distributions with other logits, after the same slots of the same draft. rows: as in the class."""
        changed = NextTokenDistributions(logits, self.hidden, self.vocabulary, rows)
        changed.confidence = self.confidence
        return changed

    def _at_slots(self, values: Shaped[Tensor, "*S"]) -> Shaped[Tensor, "B F ..."]:
        return values if self.rows is None else self.rows.back(values)

    @property
    def _row(self) -> Int[Tensor, " S"] | None:
        return None if self.rows is None else self.rows.row

    @property
    def size(self) -> int:
        """Number of tokens that every distribution has, without `oov_ids`."""
        return self._drafted.shape[-1] if self.vocabulary is None else len(self.vocabulary.tokens)

    @cached_property
    def drafted(self) -> Float[Tensor, "*S w"]:
        """Logits of the draft's vocabulary, then of `oov_ids`, for the slots `rows`, as float32 or float64.

        The first caller may change them in place, because everything else is computed from them later.
        """
        exact = self._drafted.dtype in (torch.float32, torch.float64)
        return self._drafted if exact else self._drafted.float()

    @cached_property
    def _norm(self) -> Float[Tensor, "*S"]:
        return rank(self.drafted, 0, 0).log_norm

    @cached_property
    def logits(self) -> Float[Tensor, "B F V"]:
        """Logits of the whole vocabulary, as float32 or float64; -inf for tokens that the draft cannot propose."""
        drafted, vocabulary = self.drafted, self.vocabulary
        return self._at_slots(drafted if vocabulary is None else vocabulary.spread(drafted, self._row))

    @property
    def log_norm(self) -> Float[Tensor, "B F 1"]:
        """Log-sum-exp of the logits."""
        return self._at_slots(self._norm[..., None])

    @property
    def log_probs(self) -> Float[Tensor, "B F V"]:
        """Log-probabilities of the whole vocabulary."""
        return self.logits - self.log_norm

    def top(self, k: int) -> tuple[Int[Tensor, "B F K"], Float[Tensor, "B F K"]]:
        """Return the k most probable tokens and their log-probabilities, in descending order.

        Of equal ones the lowest id comes first, and `oov_ids` come last. Raises InputError if the vocabulary has fewer
        than k tokens.
        """
        return self.topk_entropy(k, 0)[:2]

    def entropy(self, m: int | None) -> Float[Tensor, "B F"]:
        """Return the entropy over the m most probable tokens, not renormalised (C2T, equation 3).

        m = None is the whole vocabulary; m = 0 returns NaN, for policies that do not use the entropy.
        """
        return self.topk_entropy(0, m)[2]

    def topk_entropy(
        self, k: int, m: int | None
    ) -> tuple[Int[Tensor, "B F K"], Float[Tensor, "B F K"], Float[Tensor, "B F"]]:
        """Return `top(k)` and `entropy(m)`, on a GPU in one pass over the vocabulary. Raises InputError as `top`
        does."""
        if k > self.size:
            raise InputError(f"K = {k} is more than the draft's vocabulary of {self.size} tokens; choose a smaller K")
        if self._drafted.is_cuda:
            token, log_prob, entropy, _ = rank(self._drafted, k, m)
        else:
            # This pass also gives the log-norm, which would otherwise cost another pass over the vocabulary.
            token, log_prob, entropy, self._norm = rank(self.drafted, k, m, vars(self).get("_norm"))
        token = token if self.vocabulary is None else self.vocabulary.ids(token, self._row)
        return self._at_slots(token), self._at_slots(log_prob), self._at_slots(entropy)


@runtime_checkable
class Draft(Protocol):
    """The draft's state in one round: keys and values of the committed prefix and of the expanded slots."""

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """Return next-token distributions after these slots; -1 pads rows that have fewer.

        The first call of a round expands the root alone, whose forward was part of `Session.observe`. Later calls take
        any slots whose parents have been expanded, and cost one draft forward each.
        """
        ...


@runtime_checkable
class Session(Protocol):
    """A `Draft` for B rows over a whole generation: `c2t.models.drafts.session.DraftSession`, or a session wrapped
    around it (`c2t.sessions.wrapped.WrappedSession`). With CUDA graphs it has `grow` in place of `expand`.

    passes: for each row, its draft forwards in the current round, the one over the prefix included. It is unset before
    the first round.
    """

    if TYPE_CHECKING:  # a member at run time would be part of isinstance checks

        @property
        def passes(self) -> Int[Tensor, " B"]: ...

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """Run the draft over newly committed tokens, padded on the right, and begin a round.

        tokens: the previous root (in the first call the prompt's first token), then count[r] < n tokens, of which the
        last is the new root. features: the target's hidden states of all these tokens except the new root.
        """
        ...

    def refuse_nan(self) -> None:
        """Raise InputError if a distribution of this round was NaN. It waits for the device, so call it once per
        round."""
        ...

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        ...

    def join(self, other: Any) -> None:
        """Append the rows of another session of the same kind. Both must have just observed."""
        ...


@runtime_checkable
class Policy(Protocol):
    """A tree construction; see `c2t.policies`.

    It may have an optional method `session(draft, rows, verifier)`, which returns the session for a batch of up to
    `rows` rows, usually a wrapper around `draft`. Such a session can carry state from round to round, query the
    verifier (`c2t.decoding.Verifier`), or set a verification rule of its own. It may also have an optional method
    `trimmed(tree, verifier)`, which returns the part to verify of trees that constraints have completed.

    proposal: source of its candidates, a key of `c2t.verification.compatibility.RULES`. exact: True if the text has the
    target's distribution. levels: maximum depth of its trees, in levels of drafted nodes.
    """

    proposal: str
    exact: bool
    levels: int

    def __call__(self, draft: Draft, root: Root) -> Tree:
        """Return the trees of one round, grown under these roots."""
        ...


def session_of(policy: Policy, draft: Session, rows: int, verifier: Any) -> Session:
    """Return the policy's session around the draft's, or the draft's if the policy has none."""
    wrap = getattr(policy, "session", None)
    return draft if wrap is None else wrap(draft, rows, verifier)


def check_is_policy(policy: Any, name: str = "policy") -> None:
    """Raise InputError unless this is a policy; its class or its name is none. name: of the argument, for the
    message."""
    if isinstance(policy, type):
        raise InputError(f"{name} = {policy.__name__} is a class: give an instance, such as Eagle2()")
    if not callable(policy) or not hasattr(policy, "proposal"):
        raise InputError(f"{name} = {short_repr(policy)} is no policy: give one, such as Eagle2() (see c2t.policies)")


class Grown(NamedTuple):
    """Trees from a fused draft phase. slots: for each level, the expanded slots, by their numbers when the level was
    drafted; -1 pads rows that have fewer."""

    tree: Tree
    slots: Sequence[Int[Tensor, "B F"]]


def grow_tree_of(draft: Any, plan: Any, root: Root, **inputs: Any) -> Grown | None:
    """Return the trees of the draft's fused draft phase; None if it has none.

    The arguments are those of `c2t.models.drafts.session.DraftSession.grow_tree`.
    """
    grow_tree = getattr(draft, "grow_tree", None)
    return grow_tree and grow_tree(plan, root, **inputs)


class RecordingDraft:
    """A round's draft that records the expanded slots and values of their distributions.

    slots: the slots of each call of `expand`. names: values to record: "top_probs", the TOP_PROBS largest
    probabilities; "hidden", the draft's hidden states; "confidence", its own guess at acceptance. Slots must not be
    renumbered before `after` reads values.
    """

    def __init__(self, draft: Draft, names: Sequence[str] = ()):
        self.draft = draft
        self.slots: list[Int[Tensor, "B F"]] = []
        self.values: dict[str, list[Tensor]] = {name: [] for name in names if name in READ}

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        self.slots.append(slots)
        for name, values in self.values.items():
            values.append(READ[name](rows))
        return rows

    def grow_tree(self, plan: Any, root: Root, **inputs: Any) -> Grown | None:
        """See `c2t.models.drafts.session.DraftSession.grow_tree`; None if values are recorded, which needs `expand`."""
        grown = None if self.values else grow_tree_of(self.draft, plan, root, **inputs)
        self.slots += grown.slots if grown else ()
        return grown

    def after(self, slots: Int[Tensor, "B n"], name: str) -> Float[Tensor, "B n k"]:
        """Return the recorded values `name` of these expanded slots."""
        recorded = torch.cat(self.slots, 1)
        index = (slots[..., None] == recorded[:, None]).int().argmax(-1)
        values = torch.cat(self.values[name], 1)
        return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


TOP_PROBS = 10
READ: dict[str, Callable[[NextTokenDistributions], Tensor]] = {
    "confidence": lambda rows: rows.confidence[..., None],
    "top_probs": lambda rows: rows.top(TOP_PROBS)[1].exp(),
    "hidden": lambda rows: rows.hidden,
}
