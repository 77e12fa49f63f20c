"""Estimates of acceptance from a draft head's confidence, calibrated on texts; and a draft that takes them for the
probabilities of its candidates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from scipy.special import logit
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from c2t.models.drafts.session import WrappedDraft
from c2t.models.loading.load import Pair
from c2t.policies import Chain, Eagle2
from c2t.protocols import NextTokenDistributions
from c2t.replay.lockstep import replay
from c2t.sessions.wrapped import WrappedSession
from c2t.study.evaluate import continuations
from c2t.study.sweep import SweepSettings
from c2t.tree import Tree


class Fitted(NamedTuple):
    """Calibration on other prompts, a weight and a bias for each position of a chain. shares: how often the candidate
    of each rank is accepted, over the first one."""

    confidence: tuple[tuple[float, ...], tuple[float, ...]]
    margin: tuple[tuple[float, ...], tuple[float, ...]]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class ConfidenceDraft(WrappedDraft):
    """Draft whose candidates are as probable as calibrated confidence and their rank say, whatever its own
    distribution is."""

    fitted: Fitted

    def session(self) -> "ConfidenceSession":
        """Return a new session for one generation."""
        return ConfidenceSession(self.draft.session(), self.fitted)


class ConfidenceSession(WrappedSession):
    """Session of the inner draft with other probabilities of its most probable tokens."""

    def __init__(self, draft: Any, fitted: Fitted):
        super().__init__(draft)
        self.fitted = fitted

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`. The rest of the probability is that of the next token in rank."""
        rows = self.draft.expand(tree, slots)
        token, _ = rows.top(len(self.fitted.shares) + 1)
        depth = tree.depth.gather(1, slots.clamp(min=0)) + 1
        weights, biases = (torch.tensor(numbers) for numbers in self.fitted.confidence)
        position = depth.clamp(max=len(weights) - 1)
        accepted = torch.sigmoid(weights[position] * torch.logit(rows.confidence) + biases[position])
        likely = accepted[..., None] * torch.tensor(self.fitted.shares)
        rest = (1 - likely.sum(-1, keepdim=True)).clamp(min=1e-6)
        log_probs = torch.cat([likely, rest], -1).log().to(rows.logits)
        logits = torch.full_like(rows.logits, float("-inf")).scatter(-1, token, log_probs)
        return NextTokenDistributions(logits, rows.hidden)


def fit(pair: Pair, ids: Sequence[Sequence[int]], settings: SweepSettings, length: int, candidates: int) -> Fitted:
    """Calibrate the estimates of acceptance on these prompts, for chains of this length and for so many candidates of a
    node."""
    sampling = settings.sampling
    texts = continuations(pair, ids, settings.max_new_tokens, length, sampling)
    streams = {"seed": sampling.seed, "sequences": range(len(ids)), "temperature": sampling.temperature}
    samples: list[list[tuple[float, float, bool]]] = [[] for _ in range(length)]  # of each position
    for step in replay(pair.draft, Chain(length), texts, record=("confidence", "top_probs"), **streams):
        if step.tree is None:
            continue
        slots = torch.arange(length).expand(len(step.rows), -1)
        confidence = step.extra["draft"].after(slots, "confidence")[..., 0]
        probs = step.extra["draft"].after(slots, "top_probs").clamp(min=1e-12)
        for row, accepted in enumerate(step.accepted.length.tolist()):
            for position in range(min(accepted + 1, length)):
                first, second = probs[row, position, :2].tolist()
                sure = float(confidence[row, position])
                samples[position].append((float(logit(sure)), float(np.log(first / second)), position < accepted))
    ranks = np.zeros(candidates)
    for step in replay(pair.draft, Eagle2(K=candidates, levels=1, N=candidates + 1), texts, **streams):
        if step.tree is not None:
            ended = step.accepted.length > 0
            slots = step.accepted.slots[ended][:, 1] if bool(ended.any()) else step.rows[:0]
            ranks += np.bincount(step.tree.rank[ended].gather(1, slots[:, None])[:, 0].tolist(), minlength=candidates)
    fits = [[_logistic([(sample[which], sample[2]) for sample in of]) for of in samples] for which in (0, 1)]
    confidence, margin = (tuple(zip(*fit, strict=True)) for fit in fits)
    return Fitted(confidence, margin, tuple((ranks / max(ranks[0], 1)).tolist()))


def _logistic(samples: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """Return weight and bias of the logistic regression; those of no calibration where all labels are one."""
    x, accepted = np.array([[value] for value, _ in samples]), [label for _, label in samples]
    if len(set(accepted)) < 2:
        return 1.0, 0.0
    model = LogisticRegression().fit(np.clip(x, -20, 20), accepted)
    return round(float(model.coef_[0, 0]), 3), round(float(model.intercept_[0]), 3)
