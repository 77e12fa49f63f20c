"""The target's side of MCSD+: the tokens that forks start from, and the rule that accepts a fork.

Longest fork (section 3.1): the target-only rule walks each fork, and the one that gets furthest is accepted. That
prefers what is easy to draft, so the text is not that of the target alone.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.caches.ragged import SlotLogits
from c2t.errors import InputError
from c2t.protocols import Session
from c2t.sampling import Sampling, TokenCounts, gumbel, stream_key
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree
from c2t.verify import Accepted

CANDIDATES = -2  # random stream (`stream_key`) of the target's further candidates


@runtime_checkable
class Sampler(Protocol):
    """The part of the target's sampler that forks use; see `c2t.verification.sampler.TargetSampler`."""

    sampling: Sampling
    sequence: Int[Tensor, " B"]
    counts: TokenCounts | None

    def sample(self, logits: Float[Tensor, "B V"], position: Int[Tensor, " B"]) -> Int[Tensor, " B"]: ...

    def sample_at(
        self,
        logits: Float[Tensor, "b V"],
        sequence: Int[Tensor, " b"],
        position: Int[Tensor, " b"],
        counts: TokenCounts | None,
    ) -> Int[Tensor, " b"]: ...

    def observe(self, tokens: Int[Tensor, "B m"], real: Bool[Tensor, "B m"]) -> None: ...


class ForkSession(WrappedSession):
    """Session of the inner draft that also returns the target's candidates, and sets the verifier's rule to the longest
    fork. verifier: a `c2t.verification.target_verifier.TargetVerifier`, before its first round."""

    def __init__(self, draft: Session, verifier: Any):
        super().__init__(draft)
        self.verifier = verifier
        self.forks = verifier.judge = Forks(verifier.sampler)
        self.forks.look_ahead(verifier.token, verifier.session.peek(verifier.token))  # a forward more (section 3.1)

    def successors(self, count: int) -> Int[Tensor, "B W"]:
        """Return up to `count` different tokens that the target may generate after the root, the one that it samples
        first; -1 where it has no more."""
        return self.forks.successors(self.verifier.session.lengths + 1, count)


class Forks:
    """The rule of the longest fork (`c2t.verification.target_verifier.Rule`). It stores the target's logits after the
    next root, from which the next forks start."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self.ahead: Float[Tensor, "B V"] | None = None

    def look_ahead(self, root: Int[Tensor, " B"], logits: Float[Tensor, "B V"]) -> None:
        """Store the logits after the next root: its successors can now be proposed."""
        self.ahead = logits
        self.sampler.observe(root[:, None], torch.ones_like(root[:, None], dtype=torch.bool))

    def accept(self, tree: Tree, logits: SlotLogits, root: Int[Tensor, " B"]) -> Accepted:
        """Return the longest fork that the target agrees with; root: the positions of the roots."""
        logits = logits.padded()
        sampler, position = self.sampler, tree.positions(root) + 1
        sequence = sampler.sequence[:, None].expand_as(position)
        counts = sampler.counts
        if counts is not None:
            below = torch.arange(tree.size, device=root.device) > 0  # `look_ahead` has counted the root
            path, every = (tree.ancestors() & below).flatten(0, 1), torch.arange(len(root), device=root.device)
            rows = every.repeat_interleave(tree.size)
            counts = counts.select(rows).plus(tree.token[rows], path)
        chosen = sampler.sample_at(logits.flatten(0, 1), sequence.flatten(), position.flatten(), counts)
        accepted = longest_fork(tree, chosen.unflatten(0, position.shape))
        end = tree.child(accepted.slots.gather(1, accepted.length[:, None])[:, 0], accepted.bonus)
        sampler.observe(tree.token.gather(1, accepted.slots.clamp(min=0)), accepted.slots > 0)
        self.look_ahead(accepted.bonus, logits.gather(1, end[:, None, None].expand(-1, 1, logits.shape[2]))[:, 0])
        return accepted

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.ahead = self.ahead[rows]

    def join(self, other: Any) -> None:
        """Raise InputError: forks need a fixed batch."""
        raise InputError("MCSDPlus decodes fixed batches only: no row can join one")

    def successors(self, position: Int[Tensor, " B"], count: int) -> Int[Tensor, "B W"]:
        """Sample the target's token at `position`, then further ones without replacement from the same distribution; at
        temperature 0 they are the most probable tokens. -1 where the distribution has no more."""
        sampler, sampling = self.sampler, self.sampler.sampling
        token = sampler.sample(self.ahead, position)[:, None]
        values = sampling.process(self.ahead, sampler.counts).double().scatter(1, token, float("-inf"))
        if sampling.temperature:
            key = stream_key(sampling.seed, sampler.sequence, position, CANDIDATES)
            values = values + gumbel(key, torch.arange(values.shape[1], device=key.device))
        further = values.topk(min(count, values.shape[1]) - 1, dim=1)
        return torch.cat([token, torch.where(further.values.isfinite(), further.indices, -1)], 1)


def longest_fork(tree: Tree, chosen: Int[Tensor, "B n"]) -> Accepted:
    """Return the path to the deepest node that the target agrees with, among equals the one created first.

    `chosen` is the target's next token after every slot. Nodes of depth 0 are the target's candidates and need no
    agreement. The path's last token becomes the root (`bonus`), so that its slot is not among `slots`, and
    `length` counts the draft's tokens on the path.
    """
    agrees = (tree.depth < 1) | (tree.token == chosen.gather(1, tree.parent.clamp(min=0)))
    ancestors = tree.ancestors()
    agreed = tree.alive & (agrees[:, None] | ~ancestors).all(2)
    end = torch.where(agreed, tree.depth, -2).argmax(1, keepdim=True)
    accepted = tree.depth.gather(1, end)[:, 0]
    slots = torch.arange(tree.size, device=end.device)
    above = ancestors.gather(1, end[..., None].expand(-1, 1, tree.size))[:, 0] & (slots != end)
    path = torch.where(above, slots, tree.size).sort(1).values[:, : int(accepted.max()) + 1]
    return Accepted(torch.where(path < tree.size, path, -1), accepted, tree.token.gather(1, end)[:, 0], agreed)
