"""Gumbel coupling: the draft's logits get the Gumbel noise with which the target will sample.

The target's sample is the argmax of its logits plus Gumbel noise, times the temperature (`c2t.sampling`). The seed
fixes this noise in advance. A draft whose logits get the same noise, scaled by NOISE_SCALE, predicts the token that
will be sampled, and not merely a probable one. The text stays the same, because the target uses the same random numbers
for every tree (drafter invariance: Daliri, Musco and Suresh 2024).
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.caches.ragged import whole
from c2t.kernels import noise as kernel
from c2t.kernels.noise import Noise
from c2t.protocols import DraftVocabulary, Grown, NextTokenDistributions, Policy, Root, Session, grow_tree_of
from c2t.sampling import gumbel, mix_in
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree

# Below 1, because a calibrated draft's probability of a rare token is a mean over texts. In a few of them the token is
# probable; in most others the target's logit is lower and needs more noise to win. On the prompts of harvests trees are
# smallest at 0.85 to 0.95, depending on the draft and the temperature.
NOISE_SCALE = 0.9


def coupled(draft: Session, policy: Policy, verifier: Any) -> Session:
    """Return the session with the verifier's Gumbel noise in its logits.

    The session is unchanged if the verifier is greedy, or if the policy samples its candidates with other random
    numbers. verifier: a `c2t.decoding.Verifier`.
    """
    shares = verifier.stochastic and policy.proposal == "ranked" and getattr(draft, "takes_noise", True)
    return CoupledSession(draft, verifier.noise) if shares else draft


class CoupledSession(WrappedSession):
    """Session of the inner draft, whose logits get the target's Gumbel noise, scaled by NOISE_SCALE.

    noise(): returns the noise of the next round; None if all of its rows are greedy.
    """

    def __init__(self, draft: Session, noise: Callable[[], Noise | None]):
        super().__init__(draft)
        self.noise = noise
        self.scaled: Noise | None = None  # of the current round

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        if tree.size == 1:  # a round begins
            self.scaled = self._scaled()
        return rows if self.scaled is None else with_noise(rows, tree, slots, self.scaled)

    def grow_tree(self, plan: Any, root: Root, **inputs: Any) -> Grown | None:
        """See `c2t.models.drafts.session.DraftSession.grow_tree`."""
        return grow_tree_of(self.draft, plan, root, **inputs, noise=self._scaled())

    def _scaled(self) -> Noise | None:
        noise = self.noise()
        return None if noise is None else scaled(noise, self.scale)


def scaled(noise: Noise, scale: float = 1.0) -> Noise:
    """Return the noise scaled by NOISE_SCALE, for logits that were multiplied by `scale`."""
    return noise._replace(temperature=NOISE_SCALE * scale * noise.temperature)


def with_noise(
    rows: NextTokenDistributions, tree: Tree, slots: Int[Tensor, "B F"], noise: Noise
) -> NextTokenDistributions:
    """Return a draft's distributions after these slots with the noise of their positions, in place on a CPU.

    Nothing may have been computed from `rows` before.
    """
    real = rows.rows or whole(*slots.shape, slots.device)
    position = noise.root[real.row] + real.take(tree.depth.gather(1, slots.clamp(min=0))) + 2
    vocabulary = rows.vocabulary
    if kernel.serves(rows.drafted):
        ids, oov_ids = (vocabulary.tokens, vocabulary.oov_ids) if vocabulary else (None, None)
        kernel.add_noise(rows.drafted, ids, oov_ids, real.row, position, noise)
        return rows
    logits = rows.drafted.flatten(0, -2)
    noisy = (logits + noise_of(logits, vocabulary, real.row, position, noise)).view(rows.drafted.shape)
    return rows.with_logits(noisy, rows.rows)


def noise_of(
    logits: Float[Tensor, "S w"],
    vocabulary: DraftVocabulary | None,
    row: Int[Tensor, " S"],
    position: Int[Tensor, " S"],
    noise: Noise,
) -> Float[Tensor, "S w"]:
    """Return the noise, times the temperature, of samples at these positions of these rows."""
    key = mix_in(mix_in(noise.stream[row], position), torch.zeros_like(position))
    if vocabulary is None:
        ids = torch.arange(logits.shape[1], device=row.device).expand(len(row), -1)
    else:
        ids = vocabulary.tokens.expand(len(row), -1)
        ids = ids if vocabulary.oov_ids is None else torch.cat([ids, vocabulary.oov_ids[row]], 1)
    return (noise.temperature[row].double()[:, None] * gumbel(key, ids)).to(logits)
