"""Train an EAGLE head on cached target features: upstream's loss, or distillation along its own predictions.

Shapes: B rows, n positions, H hidden, V vocabulary. Slot j of a row holds the feature of position j and token j + 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from pipelines.train_lm import Progress, rate


@dataclass(frozen=True)
class HeadSettings:
    steps: int = 9000
    rows: int = 8
    learning_rate: float = 5e-3
    warmup: float = 0.02
    noise: float = 0.2  # upstream: uniform, 0.2 wide, times 512 / row length
    seed: int = 0
    checkpoint_seconds: int = 120
    minutes: float | None = None


class FeatureRows:
    """Texts of one length with the target's post-norm features; the last rows are held back."""

    def __init__(self, ids: Int[Tensor, "rows n"], features: Float[Tensor, "rows n H"], held_back: int):
        self.ids, self.features = ids, features
        self.train, self.held = torch.arange(len(ids)).split([len(ids) - held_back, held_back])

    def batch(self, step: int, settings: HeadSettings) -> tuple[Tensor, Tensor]:
        """Batch number `step` of an endless stream, in a new order each epoch."""
        per_epoch = len(self.train) // settings.rows
        epoch, index = divmod(step, per_epoch)
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(settings.seed + epoch))
        chosen = order[index * settings.rows : (index + 1) * settings.rows]
        return self.ids[chosen], self.features[chosen].float()


@torch.inference_mode()
def target_features(target: LlamaForCausalLM, ids: Int[Tensor, "rows n"], batch: int = 16) -> Float[Tensor, "rows n H"]:
    """Computed as the runtime computes them (float32), stored as float16."""
    return torch.cat([target.model(rows).last_hidden_state.half() for rows in ids.split(batch)]).clone()


def soft_cross_entropy(
    lm_head: nn.Module, predicted: Float[Tensor, "m H"], true: Float[Tensor, "m H"]
) -> Float[Tensor, ""]:
    with torch.no_grad():
        wanted = lm_head(true).float().softmax(-1)
    return -(wanted * lm_head(predicted).float().log_softmax(-1)).sum(-1).mean()


def noisy(features: Float[Tensor, "B n H"], noise: float) -> Float[Tensor, "B n H"]:
    return features + (torch.rand_like(features) - 0.5) * noise * 512 / features.shape[1]


def upstream_loss(head: nn.Module, lm_head: nn.Module, ids: Tensor, features: Tensor, noise: float) -> Tensor:
    """EAGLE: 1.0 SmoothL1 on the next feature + 0.1 soft cross-entropy between the logits of both."""
    predicted = head(noisy(features, noise)[:, :-1], ids[:, 1:])
    true = features[:, 1:]
    regression = F.smooth_l1_loss(predicted.float(), true)
    return regression + 0.1 * soft_cross_entropy(lm_head, predicted.flatten(0, 1), true.flatten(0, 1))


def level_mask(n: int, levels: int) -> Bool[Tensor, "1 1 q q"]:
    """Level 0 holds the true slots; slot j of level i sees true slots up to j and its own chain of slots j."""
    causal, same = torch.ones(n, n, dtype=torch.bool).tril(), torch.eye(n, dtype=torch.bool)
    nothing = torch.zeros(n, n, dtype=torch.bool)
    rows = [torch.cat([causal, *[same] * i, *[nothing] * (levels - 1 - i)], 1) for i in range(levels)]
    return torch.cat(rows)[None, None]


def distillation_loss(
    head: nn.Module, lm_head: nn.Module, ids: Tensor, features: Tensor, noise: float, levels: int = 2, share: int = 4
) -> Tensor:
    """1.0 soft cross-entropy + 0.1 SmoothL1, on the head's own features down the tree as well.

    Deeper levels are fed with the prediction of the level above, as in drafting, and judged at one in `share` slots.
    """
    n = ids.shape[1] - levels  # slot j of level i stands at position j + i, knows token j + i + 1
    inputs, tokens = [noisy(features, noise)[:, :n]], [ids[:, 1 : n + 1]]
    total = torch.zeros(())
    for level in range(levels):
        positions = torch.cat([torch.arange(n) + i for i in range(level + 1)]).expand(len(ids), -1)
        mask = level_mask(n, level + 1).expand(len(ids), -1, -1, -1)
        out = head(torch.cat(inputs, 1), torch.cat(tokens, 1), positions, mask)[:, -n:]
        true = features[:, level + 1 : level + 1 + n]
        judged = slice(None) if level == 0 else torch.randperm(n)[: n // share]
        predicted, wanted = out[:, judged].flatten(0, 1), true[:, judged].flatten(0, 1)
        loss = soft_cross_entropy(lm_head, predicted, wanted) + 0.1 * F.smooth_l1_loss(predicted.float(), wanted)
        total = total + loss * 0.7**level
        inputs.append(out.detach().float())
        tokens.append(ids[:, level + 2 : level + 2 + n])
    return total


@torch.inference_mode()
def agreement(head: nn.Module, lm_head: nn.Module, ids: Tensor, features: Tensor) -> float:
    """Share of positions where head and target have the same most probable token."""
    same = []
    for rows, true in zip(ids.split(16), features.split(16), strict=True):
        predicted = lm_head(head(true[:, :-1].float(), rows[:, 1:])).argmax(-1)
        same.append((predicted == lm_head(true[:, 1:].float()).argmax(-1)).float().mean())
    return float(torch.stack(same).mean())


def train_head(
    head: nn.Module,
    lm_head: nn.Module,
    loss_of: Callable[[nn.Module, nn.Module, Tensor, Tensor, float], Tensor],
    data: FeatureRows,
    settings: HeadSettings,
    folder: Path,
) -> Progress:
    """Runs to the last step or the last minute; upstream's optimiser, with a learning rate for small heads."""
    trained = [p for p in head.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)
    run = Progress(head, [optimiser], folder, settings.checkpoint_seconds)
    budget = settings.minutes * 60 if settings.minutes else float("inf")
    losses: list[float] = []
    while (progress := max((run.step + 1) / settings.steps, run.seconds / budget)) <= 1.0:
        learning_rate = settings.learning_rate * rate(progress, settings.warmup)
        run.set_rate(learning_rate)
        torch.manual_seed(1_000_003 * settings.seed + run.step)
        ids, features = data.batch(run.step, settings)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(head, lm_head, ids, features, settings.noise)
        loss.backward()
        nn.utils.clip_grad_value_(trained, 0.5)
        losses.append(float(loss.detach()))
        run.advance()
        if run.step % 100 == 0:
            same = agreement(head, lm_head, data.ids[data.held], data.features[data.held])
            run.log(loss=sum(losses) / len(losses), agreement=same, lr=learning_rate)
            losses.clear()
    run.save()
    return run
