"""The limit for a draft: trees selected by the target's probabilities instead of the draft's or a classifier's.

Among all subtrees with a given number of nodes of the full EAGLE-2 tree, the oracle's has the largest sum of target
path probabilities, which is its expected number of accepted tokens. A path is never more probable than its beginning,
so these are the most probable nodes. One threshold for all rounds gives the nodes to the rounds where they are most
probable. The cost of these probabilities (a run of the target itself) is not counted. The oracle bounds policies that
do not share the target's random numbers (`c2t.sessions.coupled`; greedy text has none), and is no policy to use.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.decoding import DraftModel
from c2t.errors import at_least_one, probability
from c2t.models.target.target import Target, TargetSession
from c2t.policies.eagle2 import Eagle2
from c2t.protocols import Root
from c2t.sampling import Sampling
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree

SLACK = 1e-4  # relative rounding error below the threshold within which nodes are retained


@dataclass(frozen=True)
class Oracle:
    """Policy that keeps the nodes of the full tree (K, levels) with a target path probability of at least `threshold`;
    its draft must be an OracleSession."""

    threshold: float = 0.02
    K: int = 10
    levels: int = 11

    proposal = "ranked"
    exact = True

    def __post_init__(self):
        at_least_one(self, "K", "levels")
        probability(self, "threshold")

    def __call__(self, draft: "OracleSession", root: Root) -> Tree:
        full = Eagle2(self.K, self.levels, N=None)(draft, root)
        likely = draft.path_probs(full) >= self.threshold * (1 - SLACK)
        return Tree(**{**full.columns(), "alive": full.alive & likely}, capped=full.capped).packed()


@dataclass(frozen=True)
class OracleDraft:
    """Draft model whose sessions also give the target's probabilities of a tree, at the given temperature."""

    drafter: DraftModel
    target: Target
    temperature: float

    def session(self) -> "OracleSession":
        """Return a new session for one generation."""
        return OracleSession(self)


class OracleSession(WrappedSession):
    """Sessions of the draft and of the target, both over the same committed prefix."""

    def __init__(self, draft: OracleDraft):
        super().__init__(draft.drafter.session())
        self.target: TargetSession = draft.target.session()
        self.sampling = Sampling(draft.temperature)

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`; the target reads the same tokens."""
        super().observe(tokens, features, count)
        self._commit(tokens[:, :-1], count)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        super().select(rows)
        self.target.select(rows)

    def join(self, other: "OracleSession") -> None:
        """See `DraftSession.join`."""
        super().join(other)
        self.target.join(other.target)

    def path_probs(self, tree: Tree) -> Float[Tensor, "B n"]:
        """Return the target's probability of the path from the root to each slot (root excluded); call it once per
        round.

        One target forward runs over the slots that have children: a leaf's probability is in its parent's row.
        """
        parent = tree.parent.clamp(min=0)
        inner = torch.zeros_like(tree.alive).scatter(1, parent, True)
        order = torch.sort(inner, dim=1, descending=True, stable=True).indices[:, : int(inner.sum(1).max())]
        log_probs = self._log_probs(self.target.verify(tree.select(order)).logits.padded())
        rows = torch.arange(len(order), device=order.device)[:, None]
        index = torch.zeros_like(tree.token).scatter(
            1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
        )
        log_prob = log_probs[rows, index.gather(1, parent), tree.token]
        log_prob[:, 0] = 0.0
        return tree.along_path(log_prob).exp()

    def _log_probs(self, logits: Float[Tensor, "B n V"]) -> Float[Tensor, "B n V"]:
        """Return log-probabilities of the distribution that the target samples from; greedy decoding gives its token
        probability 1."""
        processed = self.sampling.process(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])
        if self.sampling.temperature > 0:
            return processed.log_softmax(-1)
        chosen = processed.argmax(-1, keepdim=True)
        return torch.full_like(processed, float("-inf")).scatter(-1, chosen, 0.0)

    def _commit(self, tokens: Int[Tensor, "B n"], count: Int[Tensor, " B"]) -> None:
        """Read the tokens before the new root, count[r] real ones in row r, into the target's cache."""
        self.target.read(tokens, count)
