"""The interface between policies and models: a policy builds a tree under a root by asking a draft to expand slots of
it. Policies never see a model."""

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
    """Last committed token, which a tree grows under.

    key: 64 random bits (see `c2t.sampling.stream_key`); it may be None unless the policy's candidates are sampled.
    """

    token: Int[Tensor, " B"]
    key: Int[Tensor, " B"] | None


class DraftVocabulary(NamedTuple):
    """The part of the target's vocabulary that a draft has: ids in rising order, out of `size` in all.

    oov_ids: tokens of each row's text that are not among them (`c2t.models.drafts.oov_tokens`), whose logits stand
    behind the others; -1, with a logit of -inf, where a text has fewer. None: no text has any."""

    tokens: Int[Tensor, " v"]
    size: int
    oov_ids: Int[Tensor, "B E"] | None = None

    def ids(self, place: Int[Tensor, "*S K"], row: Int[Tensor, " S"] | None) -> Int[Tensor, "*S K"]:
        """Return the tokens whose logits stand at these places. row: of each distribution; None: they are (B, F)."""
        if self.oov_ids is None:
            return self.tokens[place]
        common, own = len(self.tokens), self._own(row, place)
        own = own.gather(-1, (place - common).clamp(min=0))
        return torch.where(place < common, self.tokens[place.clamp(max=common - 1)], own)

    def places(self, ids: Int[Tensor, "*S K"], row: Int[Tensor, " S"] | None) -> Int[Tensor, "*S K"]:
        """Return where the logits of tokens stand, all of which the draft has."""
        place = torch.searchsorted(self.tokens, ids)
        if self.oov_ids is None:
            return place
        same = ids[..., None] == self._own(row, ids)[..., None, :]
        return torch.where(same.any(-1), len(self.tokens) + same.int().argmax(-1), place)

    def spread(self, logits: Float[Tensor, "*S w"], row: Int[Tensor, " S"] | None) -> Float[Tensor, "*S V"]:
        """Return logits of the whole vocabulary; -inf for tokens that the draft does not have."""
        full, common = logits.new_full((*logits.shape[:-1], self.size), float("-inf")), len(self.tokens)
        full[..., self.tokens] = logits[..., :common]
        if self.oov_ids is None:
            return full
        return full.scatter_reduce(-1, self._own(row, logits).clamp(min=0), logits[..., common:], "amax")

    def part(self, logits: Float[Tensor, "B F V"]) -> Float[Tensor, "B F w"]:
        """Return the logits of this part of the whole vocabulary: the inverse of `spread`."""
        common = logits[..., self.tokens]
        if self.oov_ids is None:
            return common
        own = self._own(None, logits)
        theirs = logits.gather(-1, own.clamp(min=0)).masked_fill(own < 0, float("-inf"))
        return torch.cat([common, theirs], -1)

    def _own(self, row: Int[Tensor, " S"] | None, like: Shaped[Tensor, "*S n"]) -> Int[Tensor, "*S E"]:
        """Return the own tokens beside each distribution."""
        own = self.oov_ids[:, None] if row is None else self.oov_ids[row]
        return own.expand(*like.shape[:-1], -1)


class NextTokenDistributions:
    """Next-token distributions of the draft after F expanded slots of each of B trees; everything in nats.

    Half-precision logits are read as float32: sums of half-precision log-probabilities often tie or change order.
    hidden: the draft's last hidden states at these slots, from which the logits were made; None if it has none.
    vocabulary: the tokens that the logits are of; all others have probability 0. None: all tokens. rows: which of the
    slots the S logits are of, row after row; the others have some slot's distribution. None: all slots, as (B, F, v).
    """

    rows: Ragged | None = None

    def __init__(
        self,
        logits: Float[Tensor, "B F v"] | Float[Tensor, "S v"],
        hidden: Float[Tensor, "B F H"] | None = None,
        vocabulary: DraftVocabulary | None = None,
        rows: Ragged | None = None,
    ):
        self.hidden, self.vocabulary, self.rows = hidden, vocabulary, rows
        self._drafted = logits

    def _at_slots(self, values: Shaped[Tensor, "*S"]) -> Shaped[Tensor, "B F ..."]:
        return values if self.rows is None else self.rows.back(values)

    @property
    def _row(self) -> Int[Tensor, " S"] | None:
        return None if self.rows is None else self.rows.row

    @property
    def size(self) -> int:
        """Tokens that the distributions of all rows have in common."""
        return self._drafted.shape[-1] if self.vocabulary is None else len(self.vocabulary.tokens)

    @cached_property
    def drafted(self) -> Float[Tensor, "*S w"]:
        """Logits of the draft's vocabulary, then of texts' own tokens, of the slots `rows`, as float32 or float64.

        Who gets them first may change them in place: all else is read off what they are then.
        """
        exact = self._drafted.dtype in (torch.float32, torch.float64)
        return self._drafted if exact else self._drafted.float()

    @cached_property
    def _norm(self) -> Float[Tensor, "*S"]:
        return rank(self.drafted, 0, 0).log_norm

    @cached_property
    def logits(self) -> Float[Tensor, "B F V"]:
        """Logits of the whole vocabulary, as float32 or float64; -inf for tokens that the draft does not have."""
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
        """Return the k most probable tokens and their log-probabilities, most probable first, equal ones by lowest id,
        a text's own behind the others.

        Raises InputError where the vocabulary has fewer than k tokens.
        """
        return self.topk_entropy(k, 0)[:2]

    def entropy(self, m: int | None) -> Float[Tensor, "B F"]:
        """Return the entropy over the m most probable tokens, not renormalised (C2T, equation 3). None: the whole
        vocabulary. 0: not computed (NaN), for policies that do not use it."""
        return self.topk_entropy(0, m)[2]

    def topk_entropy(
        self, k: int, m: int | None
    ) -> tuple[Int[Tensor, "B F K"], Float[Tensor, "B F K"], Float[Tensor, "B F"]]:
        """Return `top(k)` and `entropy(m)` together, which on a GPU is one pass over the vocabulary; InputError as in
        `top`."""
        if k > self.size:
            raise InputError(f"K = {k} is more than the draft's vocabulary of {self.size} tokens; choose a smaller K")
        if self._drafted.is_cuda:
            token, log_prob, entropy, _ = rank(self._drafted, k, m)
        else:
            # The log-norm is found on the way; by itself it costs a pass over the vocabulary.
            token, log_prob, entropy, self._norm = rank(self.drafted, k, m, vars(self).get("_norm"))
        token = token if self.vocabulary is None else self.vocabulary.ids(token, self._row)
        return self._at_slots(token), self._at_slots(log_prob), self._at_slots(entropy)


@runtime_checkable
class Draft(Protocol):
    """State of one generation's draft: keys and values of the committed prefix, and of the slots expanded in this
    round."""

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """Return next-token distributions after these slots; -1 fills rows that have fewer.

        The first call of a round expands the root alone, whose forward was made when the prefix was observed. Later
        calls take any slots whose parents were expanded before, and cost one draft forward each.
        """
        ...


@runtime_checkable
class Session(Protocol):
    """`Draft` of B texts over one generation (`c2t.models.drafts.session.DraftSession`), or what stands around it
    (`c2t.sessions.wrapped.WrappedSession`); by CUDA graphs it grows trees by itself.

    passes: for each row, the draft forwards of the present round that it took part in, the one over the prefix
    included; there are none before the first round.
    """

    if TYPE_CHECKING:  # isinstance would ask for them then

        @property
        def passes(self) -> Int[Tensor, " B"]: ...

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """Take in committed text, rows padded on the right, which begins a round.

        tokens: the previous root (in the first call the prompt's first token) and the count[r] < n tokens after it, the
        last of which is the new root. features: the target's features of all these tokens but the new root.
        """
        ...

    def refuse_nan(self) -> None:
        """Raise InputError if a distribution of this round was NaN. Called once a round, because it waits for the
        device."""
        ...

    def end(self, step: Any) -> None:
        """Take note of a round that was just verified (`c2t.decoding.Step`)."""
        ...

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        ...

    def join(self, other: Any) -> None:
        """Append the rows of another session of the same kind behind one's own. Both have just observed."""
        ...


@runtime_checkable
class Policy(Protocol):
    """A tree construction; see `c2t.policies`.

    It may have a method `session(draft, rows, verifier)` besides, which returns the session that it decodes a batch of
    at most so many rows with: one of its own around the draft's, say. There it keeps what it needs from round to round,
    asks the verifier (`c2t.decoding.Verifier`) what a tree does not say, or gives it a rule of its own.
    """

    proposal: str  # where its candidates come from, a key of `c2t.verification.compatibility.RULES`
    exact: bool  # whether the text keeps the target's law
    levels: int  # layers of drafted nodes at most

    def __call__(self, draft: Draft, root: Root) -> Tree: ...


def session_of(policy: Policy, draft: Session, rows: int, verifier: Any) -> Session:
    """Return the session that the policy brings around the draft's; the draft's own where it brings none."""
    bring = getattr(policy, "session", None)
    return draft if bring is None else bring(draft, rows, verifier)


def check_is_policy(policy: Any, name: str = "policy") -> None:
    """Raise InputError for what is no policy, such as its class or its name; `name` says whose policy it was to be."""
    if isinstance(policy, type):
        raise InputError(f"{name} = {policy.__name__} is a class: give an instance, such as Eagle2()")
    if not callable(policy) or not hasattr(policy, "proposal"):
        raise InputError(f"{name} = {short_repr(policy)} is no policy: give one, such as Eagle2() (see c2t.policies)")


class Grown(NamedTuple):
    """Trees that a draft has grown by itself, and the slots that each level of theirs was drafted from, as they were
    numbered then; -1 fills rows that have fewer."""

    tree: Tree
    slots: Sequence[Int[Tensor, "B F"]]


def grow_tree_of(draft: Any, plan: Any, root: Root, **inputs: Any) -> Grown | None:
    """Return what a draft grows by itself, see `c2t.models.drafts.session.DraftSession.grow_tree` for the arguments;
    None from drafts that cannot."""
    grow_tree = getattr(draft, "grow_tree", None)
    return grow_tree and grow_tree(plan, root, **inputs)


class RecordingDraft:
    """Draft of a round that keeps the slots it expanded and parts of the distributions.

    slots: the slots of each call of `expand`. names: parts of the distributions to keep: "top_probs", the TOP_PROBS
    largest probabilities; or "hidden", the draft's hidden states. `after` finds a slot only if it keeps its number
    until the tree is verified.
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
        """See `c2t.models.drafts.session.DraftSession.grow_tree`; None where parts of the distributions are kept."""
        grown = None if self.values else grow_tree_of(self.draft, plan, root, **inputs)
        self.slots += grown.slots if grown else ()
        return grown

    def after(self, slots: Int[Tensor, "B n"], name: str) -> Float[Tensor, "B n k"]:
        """Return what was kept under `name` at these expanded slots."""
        known = torch.cat(self.slots, 1)
        place = (slots[..., None] == known[:, None]).int().argmax(-1)
        values = torch.cat(self.values[name], 1)
        return values.gather(1, place[..., None].expand(-1, -1, values.shape[2]))


TOP_PROBS = 10
READ: dict[str, Callable[[NextTokenDistributions], Tensor]] = {
    "top_probs": lambda rows: rows.top(TOP_PROBS)[1].exp(),
    "hidden": lambda rows: rows.hidden,
}
