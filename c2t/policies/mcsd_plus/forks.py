"""The target's side of MCSD+: which tokens forks may start from, and which fork is kept.

Longest fork (section 3.1): each fork is walked by the target-only rule, and the one that gets furthest is kept. That
prefers what is easy to draft, so the text is not the target's own.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.caches.ragged import SlotLogits
from c2t.errors import InputError
from c2t.protocols import Session
from c2t.sampling import Sampling, gumbel, stream_key
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree
from c2t.verify import Accepted

CANDIDATES = -2  # the number in `stream_key` of the target's further candidates


@runtime_checkable
class Sampler(Protocol):
    """The part of the target's sampler that forks use; see `c2t.verification.sampler.TargetSampler`."""

    sampling: Sampling
    sequence: Int[Tensor, " B"]
    seen: Bool[Tensor, "B V"] | None

    def sample(self, logits: Float[Tensor, "B V"], position: Int[Tensor, " B"]) -> Int[Tensor, " B"]: ...

    def sample_at(
        self,
        logits: Float[Tensor, "b V"],
        sequence: Int[Tensor, " b"],
        position: Int[Tensor, " b"],
        seen: Tensor | None,
    ) -> Int[Tensor, " b"]: ...

    def observe(self, tokens: Int[Tensor, "B m"]) -> None: ...


class ForkSession(WrappedSession):
    """Session of the inner draft, which also tells tokens of the target's own, and gives its verifier the rule that
    keeps the longest fork. verifier: a `c2t.verification.target_verifier.TargetVerifier`, before its first round."""

    def __init__(self, draft: Session, verifier: Any):
        super().__init__(draft)
        self.verifier = verifier
        self.forks = verifier.judge = Forks(verifier.sampler)
        self.forks.look_ahead(verifier.token, verifier.session.peek(verifier.token))  # a forward more (section 3.1)

    def successors(self, count: int) -> Int[Tensor, "B W"]:
        """Return up to `count` different tokens that the target itself would generate after the root, its own choice
        first, -1 where it has no more."""
        return self.forks.successors(self.verifier.session.lengths + 1, count)


class Forks:
    """The rule of the longest fork (`c2t.verification.target_verifier.Rule`), which keeps the target's logits after the
    coming root, from which the next forks start."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self.ahead: Float[Tensor, "B V"] | None = None

    def look_ahead(self, root: Int[Tensor, " B"], logits: Float[Tensor, "B V"]) -> None:
        """Take note of the logits after the coming root: its successors can now be proposed."""
        self.ahead = logits
        self.sampler.observe(root[:, None])

    def accept(self, tree: Tree, logits: SlotLogits, root: Int[Tensor, " B"]) -> Accepted:
        """Return the longest fork that the target agrees with; root: the positions of the roots."""
        logits = logits.padded()
        sampler, position = self.sampler, tree.positions(root) + 1
        sequence = sampler.sequence[:, None].expand_as(position)
        seen = None
        if sampler.seen is not None:
            path = tree.ancestors().float() @ torch.nn.functional.one_hot(tree.token, logits.shape[2]).float()
            seen = (sampler.seen[:, None] | (path > 0)).flatten(0, 1)
        chosen = sampler.sample_at(logits.flatten(0, 1), sequence.flatten(), position.flatten(), seen)
        accepted = longest_fork(tree, chosen.unflatten(0, position.shape))
        end = tree.child(accepted.slots.gather(1, accepted.length[:, None])[:, 0], accepted.bonus)
        sampler.observe(tree.token.gather(1, accepted.slots.clamp(min=0)))  # beyond a path stands the root
        self.look_ahead(accepted.bonus, logits.gather(1, end[:, None, None].expand(-1, 1, logits.shape[2]))[:, 0])
        return accepted

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Go on with these rows of the batch only."""
        self.ahead = self.ahead[rows]

    def join(self, other: Any) -> None:
        """Raise InputError: forks stay with the batch that they began in."""
        raise InputError("MCSDPlus decodes fixed batches only: no row can join one")

    def successors(self, position: Int[Tensor, " B"], count: int) -> Int[Tensor, "B W"]:
        """Draw the target's own token at `position`, then further ones without replacement from the same distribution;
        at temperature 0 the most probable tokens. -1 where the distribution has no more."""
        sampler, sampling = self.sampler, self.sampler.sampling
        own = sampler.sample(self.ahead, position)[:, None]
        values = sampling.process(self.ahead, sampler.seen).double().scatter(1, own, float("-inf"))
        if sampling.temperature:
            key = stream_key(sampling.seed, sampler.sequence, position, CANDIDATES)
            values = values + gumbel(key, torch.arange(values.shape[1], device=key.device))
        further = values.topk(min(count, values.shape[1]) - 1, dim=1)
        return torch.cat([own, torch.where(further.values.isfinite(), further.indices, -1)], 1)


def longest_fork(tree: Tree, chosen: Int[Tensor, "B n"]) -> Accepted:
    """Return the path to the deepest node that the target agrees with, among equals the one created first.

    `chosen` is the target's own next token after every slot. Nodes of depth 0 are the target's own candidates and need
    no agreement. The path's last token becomes the root (`bonus`), so that its slot is not among `slots`, and
    `length` counts the draft's tokens on the path.
    """
    agrees = (tree.depth < 1) | (tree.token == chosen.gather(1, tree.parent.clamp(min=0)))
    ancestors = tree.ancestors()
    agreed = tree.alive & (agrees[:, None] | ~ancestors).all(2)
    end = torch.where(agreed, tree.depth, -2).argmax(1, keepdim=True)
    accepted = tree.depth.gather(1, end)[:, 0]
    places = torch.arange(tree.size, device=end.device)
    above = ancestors.gather(1, end[..., None].expand(-1, 1, tree.size))[:, 0] & (places != end)
    slots = torch.where(above, places, tree.size).sort(1).values[:, : int(accepted.max()) + 1]
    return Accepted(torch.where(slots < tree.size, slots, -1), accepted, tree.token.gather(1, end)[:, 0], agreed)
