"""Record every candidate that a policy looks at, without changing what it does."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.decoding import Verifier
from c2t.protocols import Draft, NextTokenDistributions, Policy, Root, Session, session_of
from c2t.tree import Tree

Path = tuple[int, ...]  # the tokens from under the root to a node; () is the root


class Children(NamedTuple):
    """The candidates under one node, by rank. entropy: nats, of the distribution that they come from."""

    tokens: list[int]
    log_probs: list[float]
    entropy: float


Drafted = dict[Path, Children]  # the candidates of a round by their parents, in the order of drafting


class RecordingPolicy:
    """Policy for one prompt that stores the candidates of every round: `rounds[i]` are those of round i."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self.proposal, self.exact, self.levels = policy.proposal, policy.exact, policy.levels
        self.rounds: list[Drafted] = []

    def session(self, draft: Session, rows: int, verifier: Verifier) -> Session:
        """See `c2t.protocols.Policy`."""
        return session_of(self.policy, draft, rows, verifier)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        """See `c2t.protocols.Policy`."""
        self.rounds.append({})
        return self.policy(CandidateDraft(draft, self.rounds[-1]), root)


class CandidateDraft:
    """Draft of one tree that stores in `drafted` the candidates that a policy takes from it."""

    def __init__(self, draft: Draft, drafted: Drafted):
        self.draft, self.drafted = draft, drafted

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `Draft.expand`."""

        def store(token: Int[Tensor, "B F K"], log_prob: Float[Tensor, "B F K"], entropy: Float[Tensor, "B F"]) -> None:
            families = zip(*(column[0].tolist() for column in (slots, token, log_prob, entropy)), strict=True)
            for slot, tokens, log_probs, nats in families:
                if slot >= 0 and bool(tree.alive[0, slot]):
                    self.drafted[path_to(tree, slot)] = Children(tokens, log_probs, nats)

        return RecordedDistributions(self.draft.expand(tree, slots), store)


class RecordedDistributions(NextTokenDistributions):
    """Distributions that hand the candidates which a policy takes to `store`, with their entropy even where the policy
    does without it."""

    def __init__(self, rows: NextTokenDistributions, store: Callable[[Tensor, Tensor, Tensor], None]):
        super().__init__(rows.drafted, rows.hidden, rows.vocabulary, rows.rows)
        self.confidence, self.store = rows.confidence, store

    def topk_entropy(
        self, k: int, m: int | None
    ) -> tuple[Int[Tensor, "B F K"], Float[Tensor, "B F K"], Float[Tensor, "B F"]]:
        """See `NextTokenDistributions.topk_entropy`."""
        token, log_prob, entropy = super().topk_entropy(k, m)
        if k:
            self.store(token, log_prob, super().topk_entropy(0, None)[2] if m == 0 else entropy)
        return token, log_prob, entropy


def path_to(tree: Tree, slot: int) -> Path:
    """Return the tokens from under the root to a slot of the first tree."""
    path: list[int] = []
    while slot > 0:
        path.append(int(tree.token[0, slot]))
        slot = int(tree.parent[0, slot])
    return tuple(reversed(path))


def complete(drafted: Drafted, tree: Tree) -> Drafted:
    """Return the candidates together with nodes of the tree that no ranking has proposed, such as sampled ones."""
    families = {path: Children(list(f.tokens), list(f.log_probs), f.entropy) for path, f in drafted.items()}
    for slot in torch.nonzero(tree.alive[0])[1:, 0].tolist():
        *parent, token = path_to(tree, slot)
        children = families.setdefault(tuple(parent), Children([], [], float(tree.entropy[0, slot])))
        if token not in children.tokens:
            children.tokens.append(token)
            children.log_probs.append(float(tree.log_prob[0, slot]))
    return families
