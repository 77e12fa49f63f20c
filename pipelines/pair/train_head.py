"""Train a draft head on cached target states, with upstream's losses.

Shapes: B rows, n positions, H hidden, V vocabulary. Slot j of a row holds the feature of position j and token j + 1.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from c2t.drafting.losses import noisy
from c2t.models.drafts.eagle import Head
from c2t.models.drafts.medusa import MedusaHead
from c2t.models.loading.eagle_checkpoint import save_head
from pipelines.pair.train_lm import Progress, rate


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a head's training."""

    steps: int = 9000
    rows: int = 8
    learning_rate: float = 5e-3
    warmup: float = 0.02
    noise: float = 0.2  # upstream: uniform, 0.2 wide, times 512 / row length
    seed: int = 0
    checkpoint_seconds: int = 120
    minutes: float | None = None


class Batch(NamedTuple):
    """Rows to train on. features: the target's post-norm states, which the head reads and which its predictions are
    compared with."""

    ids: Int[Tensor, "B n"]
    features: Float[Tensor, "B n H"]


class FeatureRows:
    """Texts of one length with the target's states (see `Batch`); the last rows are held back."""

    def __init__(self, ids: Int[Tensor, "rows n"], features: Float[Tensor, "rows n H"], held_back: int):
        self.ids, self.features = ids, features
        self.train, self.held = torch.arange(len(ids)).split([len(ids) - held_back, held_back])

    def batch(self, step: int, settings: HeadSettings) -> Batch:
        """Return batch number `step` of an endless stream, in a new order each epoch."""
        per_epoch = len(self.train) // settings.rows
        epoch, index = divmod(step, per_epoch)
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(settings.seed + epoch))
        return self.at(order[index * settings.rows : (index + 1) * settings.rows])

    def at(self, rows: Int[Tensor, " B"]) -> Batch:
        """Return these rows, in float32."""
        return Batch(self.ids[rows], self.features[rows].float())


@torch.inference_mode()
def target_features(target: LlamaForCausalLM, ids: Int[Tensor, "rows n"], batch: int = 16) -> Float[Tensor, "rows n H"]:
    """Return post-norm states, computed in float32, as at run time, and stored as float16."""
    return torch.cat([target.model(rows).last_hidden_state.half() for rows in ids.split(batch)]).clone()


def save_draft(head: Head, folder: Path) -> None:
    """Write a head in bf16, without the embedding, which is the target's."""
    stored = copy.deepcopy(head).cpu()
    stored.embed_tokens = None
    save_head(stored.to(torch.bfloat16), folder)


def soft_cross_entropy(
    lm_head: nn.Module, predicted: Float[Tensor, "m H"], true: Float[Tensor, "m H"]
) -> Float[Tensor, ""]:
    """Return the cross-entropy between the next-token distributions of true and predicted features."""
    with torch.no_grad():
        wanted = lm_head(true).float().softmax(-1)
    return -(wanted * lm_head(predicted).float().log_softmax(-1)).sum(-1).mean()


def upstream_loss(head: nn.Module, lm_head: nn.Module, batch: Batch, noise: float) -> Tensor:
    """Return EAGLE's loss: 1.0 SmoothL1 on the next feature + 0.1 soft cross-entropy between the logits of both."""
    predicted = head(noisy(batch.features, noise)[:, :-1], batch.ids[:, 1:])
    true = batch.features[:, 1:]
    regression = F.smooth_l1_loss(predicted.float(), true)
    return regression + 0.1 * soft_cross_entropy(lm_head, predicted.flatten(0, 1), true.flatten(0, 1))


def medusa_loss(head: MedusaHead, lm_head: nn.Module, batch: Batch, noise: float) -> Tensor:
    """Return Medusa's loss: soft cross-entropy at every depth after the layer's own, with weights 0.8^k. The layer
    does not learn."""
    levels = len(head.heads) + 1
    n = batch.ids.shape[1] - levels
    with torch.no_grad():
        guess = head(batch.features[:, :n], batch.ids[:, 1 : n + 1])
    total = torch.zeros(())
    for depth in range(1, levels):
        wanted = batch.features[:, depth + 1 : depth + 1 + n].flatten(0, 1)
        total = total + 0.8**depth * soft_cross_entropy(lm_head, head.at(guess, depth).flatten(0, 1), wanted)
    return total


@torch.inference_mode()
def agreement(head: Head, lm_head: nn.Module, data: FeatureRows, rows: Int[Tensor, " rows"]) -> float:
    """Return the share of these rows' positions where head and target have the same most probable token: the next one,
    or of a Medusa-style head, whose layer does not learn, the one after it."""
    same, ahead = [], int(isinstance(head, MedusaHead))
    for part in rows.split(16):
        ids, features = data.at(part)
        end = ids.shape[1] - ahead
        hidden = head(features[:, : end - 1], ids[:, 1:end])
        predicted = head.logits(head.at(hidden, ahead) if ahead else hidden, lm_head).argmax(-1)
        same.append((predicted == lm_head(features[:, 1 + ahead :]).argmax(-1)).float().mean())
    return float(torch.stack(same).mean())


def train_head(
    head: nn.Module,
    lm_head: nn.Module,
    loss_of: Callable[[nn.Module, nn.Module, Batch, float], Tensor],
    data: FeatureRows,
    settings: HeadSettings,
    folder: Path,
) -> Progress:
    """Train to the last step or the last minute, with upstream's optimiser and a learning rate for small heads."""
    trained = [p for p in head.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)
    run = Progress(head, [optimiser], folder, settings.checkpoint_seconds)
    budget = settings.minutes * 60 if settings.minutes else float("inf")
    losses: list[float] = []
    while (progress := max((run.step + 1) / settings.steps, run.seconds / budget)) <= 1.0:
        learning_rate = settings.learning_rate * rate(progress, settings.warmup)
        run.set_rate(learning_rate)
        torch.manual_seed(1_000_003 * settings.seed + run.step)
        batch = data.batch(run.step, settings)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(head, lm_head, batch, settings.noise)
        loss.backward()
        nn.utils.clip_grad_value_(trained, 0.5)
        losses.append(float(loss.detach()))
        run.advance()
        if run.step % 100 == 0:
            same = agreement(head, lm_head, data, data.held)
            run.log(loss=sum(losses) / len(losses), agreement=same, lr=learning_rate)
            losses.clear()
    run.save()
    return run
