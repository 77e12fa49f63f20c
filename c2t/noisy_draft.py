"""A draft that knows the target's random numbers, which a seed fixes before the target has seen a token.

The target takes the largest of its logits once each has Gumbel noise, times the temperature (`c2t.sampling`). A draft
whose own logits get this noise too, a little quieter, guesses that token, and not merely one that is probable: at
temperature 0 the two are the same. The text is what it is without, because the target draws it with these numbers
whatever the tree holds (Daliri, Musco and Suresh 2024 call a text that no draft can change drafter-invariant).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.kernels import noise as kernel
from c2t.kernels.draft_phase import Spending
from c2t.kernels.layered import Layered
from c2t.kernels.noise import Noise
from c2t.protocols import Draft, DraftVocabulary, Grown, NextTokenDistributions, Root, grown_by
from c2t.ragged import whole
from c2t.sampling import gumbel, mix_in
from c2t.tree import Tree

# Loudness of the noise. A calibrated draft's probability of a rare token is a mean that a few texts make, in which the
# token is likely; in most others the target's logit is lower, and needs more noise to win. Measured on prompts of
# harvests: trees are smallest with 0.85 to 0.95, by the draft and the temperature.
HEARD = 0.9


class NoisyDraft:
    """Draft of a round whose logits have the noise of the target's draws, at HEARD of its loudness. scale: what these
    logits, and so the noise, are multiplied by."""

    def __init__(self, draft: Draft, noise: Noise, scale: float = 1.0):
        self.draft, self.noise = draft, noise._replace(temperature=HEARD * scale * noise.temperature)

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        real = rows.rows or whole(*slots.shape, slots.device)
        position = self.noise.root[real.row] + real.take(tree.depth.gather(1, slots.clamp(min=0))) + 2
        vocabulary = rows.vocabulary
        if kernel.serves(rows.drafted):
            rows = rows.own()
            ids, own = (vocabulary.tokens, vocabulary.own) if vocabulary else (None, None)
            kernel.add_noise(rows.drafted, ids, own, real.row, position, self.noise)
            return rows
        logits = rows.drafted.flatten(0, -2)
        noisy = (logits + noise_of(logits, vocabulary, real.row, position, self.noise)).view(rows.drafted.shape)
        return NextTokenDistributions(noisy, rows.hidden, vocabulary, rows.rows)

    def grow_by(self, plan: Layered, root: Root, spending: Spending | None = None) -> Grown | None:
        """See `c2t.models.draft.DraftSession.grow_by`, which reads the root's noise."""
        return grown_by(self.draft, plan, root._replace(noise=self.noise), spending)


def noise_of(
    logits: Float[Tensor, "S w"],
    vocabulary: DraftVocabulary | None,
    row: Int[Tensor, " S"],
    position: Int[Tensor, " S"],
    noise: Noise,
) -> Float[Tensor, "S w"]:
    """Return the noise, times the temperature, that draws at these positions of these rows' texts have."""
    key = mix_in(mix_in(noise.stream[row], position), torch.zeros_like(position))
    if vocabulary is None:
        ids = torch.arange(logits.shape[1], device=row.device).expand(len(row), -1)
    else:
        ids = vocabulary.tokens.expand(len(row), -1)
        ids = ids if vocabulary.own is None else torch.cat([ids, vocabulary.own[row]], 1)
    return (noise.temperature[row].double()[:, None] * gumbel(key, ids)).to(logits)
