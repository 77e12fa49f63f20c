"""Train a draft head on cached target states: upstream's losses, or distillation along its own predictions.

Shapes: B rows, n positions, H hidden, V vocabulary. Slot j of a row holds the feature of position j and token j + 1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from c2t.models.eagle import Head
from c2t.models.eagle3 import Eagle3Head
from c2t.models.medusa import MedusaHead
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
    """Rows to train on. inputs: the head's input at each position (the features, or EAGLE-3's three states). features:
    the target's post-norm states, which the head's predictions are compared with."""

    ids: Int[Tensor, "B n"]
    inputs: Float[Tensor, "B n D"]
    features: Float[Tensor, "B n H"]


class FeatureRows:
    """Texts of one length with the target's states (see `Batch`); the last rows are held back."""

    def __init__(
        self,
        ids: Int[Tensor, "rows n"],
        features: Float[Tensor, "rows n H"],
        held_back: int,
        inputs: Float[Tensor, "rows n D"] | None = None,
    ):
        self.ids, self.features, self.inputs = ids, features, features if inputs is None else inputs
        self.train, self.held = torch.arange(len(ids)).split([len(ids) - held_back, held_back])

    def batch(self, step: int, settings: HeadSettings) -> Batch:
        """Return batch number `step` of an endless stream, in a new order each epoch."""
        per_epoch = len(self.train) // settings.rows
        epoch, index = divmod(step, per_epoch)
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(settings.seed + epoch))
        return self.at(order[index * settings.rows : (index + 1) * settings.rows])

    def at(self, rows: Int[Tensor, " B"]) -> Batch:
        """Return these rows, in float32."""
        return Batch(self.ids[rows], self.inputs[rows].float(), self.features[rows].float())


@torch.inference_mode()
def target_features(
    target: LlamaForCausalLM, ids: Int[Tensor, "rows n"], taps: tuple[int, ...] = (), batch: int = 16
) -> tuple[Float[Tensor, "rows n H"], Float[Tensor, "rows n D"]]:
    """Return post-norm states, and the inputs of the tapped layers side by side (none: 0 wide).

    They are computed in float32, as at run time, and stored as float16.
    """
    features, tapped = [], []
    for rows in ids.split(batch):
        out = target.model(rows, output_hidden_states=True)
        features.append(out.last_hidden_state.half())
        states = [out.hidden_states[layer] for layer in taps]
        tapped.append(torch.cat([out.last_hidden_state[..., :0], *states], -1).half())
    return torch.cat(features).clone(), torch.cat(tapped).clone()


def frequent_tokens(ids: Int[Tensor, "rows n"], count: int, vocabulary: int) -> Int[Tensor, " count"]:
    """Return the most frequent tokens of these texts, in the order of their ids: EAGLE-3's reduced vocabulary."""
    return ids.flatten().bincount(minlength=vocabulary).sort(descending=True, stable=True).indices[:count].sort().values


def soft_cross_entropy(
    lm_head: nn.Module, predicted: Float[Tensor, "m H"], true: Float[Tensor, "m H"]
) -> Float[Tensor, ""]:
    """Return the cross-entropy between the next-token distributions of true and predicted features."""
    with torch.no_grad():
        wanted = lm_head(true).float().softmax(-1)
    return -(wanted * lm_head(predicted).float().log_softmax(-1)).sum(-1).mean()


def noisy(features: Float[Tensor, "B n H"], noise: float) -> Float[Tensor, "B n H"]:
    """Return features with upstream's uniform noise."""
    return features + (torch.rand_like(features) - 0.5) * noise * 512 / features.shape[1]


def upstream_loss(head: nn.Module, lm_head: nn.Module, batch: Batch, noise: float) -> Tensor:
    """Return EAGLE's loss: 1.0 SmoothL1 on the next feature + 0.1 soft cross-entropy between the logits of both."""
    predicted = head(noisy(batch.inputs, noise)[:, :-1], batch.ids[:, 1:])
    true = batch.features[:, 1:]
    regression = F.smooth_l1_loss(predicted.float(), true)
    return regression + 0.1 * soft_cross_entropy(lm_head, predicted.flatten(0, 1), true.flatten(0, 1))


def level_mask(n: int, levels: int) -> Bool[Tensor, "1 1 q q"]:
    """Return the mask of unrolled levels: level 0 holds the true slots; slot j of level i sees true slots up to j and
    its own chain of slots j."""
    causal, same = torch.ones(n, n, dtype=torch.bool).tril(), torch.eye(n, dtype=torch.bool)
    nothing = torch.zeros(n, n, dtype=torch.bool)
    rows = [torch.cat([causal, *[same] * i, *[nothing] * (levels - 1 - i)], 1) for i in range(levels)]
    return torch.cat(rows)[None, None]


def unrolled(
    head: nn.Module, first: Float[Tensor, "B n H"], ids: Int[Tensor, "B n+levels"], levels: int
) -> Iterator[Float[Tensor, "B n H"]]:
    """Yield the head's outputs level by level. Deeper levels read the prediction of the level above, as in drafting.

    Slot j of level i stands at position j + i and knows token j + i + 1. first: the input of level 0.
    """
    n = first.shape[1]
    inputs, tokens = [first], [ids[:, 1 : n + 1]]
    for level in range(levels):
        positions = torch.cat([torch.arange(n) + i for i in range(level + 1)]).expand(len(ids), -1)
        mask = level_mask(n, level + 1).expand(len(ids), -1, -1, -1)
        out = head(torch.cat(inputs, 1), torch.cat(tokens, 1), positions, mask)[:, -n:]
        yield out
        inputs.append(out.detach().float())
        tokens.append(ids[:, level + 2 : level + 2 + n])


def distillation_loss(
    head: nn.Module, lm_head: nn.Module, batch: Batch, noise: float, levels: int = 2, share: int = 4
) -> Tensor:
    """Return 1.0 soft cross-entropy + 0.1 SmoothL1, on the head's own features down the tree as well.

    Deeper levels weigh 0.7^i and are compared at one in `share` slots.
    """
    n = batch.ids.shape[1] - levels
    total = torch.zeros(())
    for level, out in enumerate(unrolled(head, noisy(batch.inputs, noise)[:, :n], batch.ids, levels)):
        judged = slice(None) if level == 0 else torch.randperm(n)[: n // share]
        predicted = out[:, judged].flatten(0, 1)
        wanted = batch.features[:, level + 1 : level + 1 + n][:, judged].flatten(0, 1)
        loss = soft_cross_entropy(lm_head, predicted, wanted) + 0.1 * F.smooth_l1_loss(predicted.float(), wanted)
        total = total + loss * 0.7**level
    return total


def eagle3_loss(
    head: Eagle3Head, lm_head: nn.Module, batch: Batch, noise: float, levels: int = 2, share: int = 4
) -> Tensor:
    """Return the loss of EAGLE-3's training-time test.

    It is the soft cross-entropy over the draft's vocabulary at every unrolled step, with weights 0.8^i, where the
    target's most probable token is in that vocabulary. Upstream unrolls 7 steps and compares every position of each;
    `levels` of them and one in `share` positions of the deeper ones fit two cores.
    """
    n = batch.ids.shape[1] - levels
    own = head.t2d.nonzero()[:, 0]
    total = torch.zeros(())
    for level, out in enumerate(unrolled(head, head.fc(batch.inputs[:, :n]).float(), batch.ids, levels)):
        judged = slice(None) if level == 0 else torch.randperm(n)[: n // share]
        with torch.no_grad():
            logits = lm_head(batch.features[:, level + 1 : level + 1 + n][:, judged]).float()
            known = head.t2d[logits.argmax(-1)]
            wanted = logits[known][:, own].softmax(-1)
        log_probs = head.lm_head(head.norm(out[:, judged][known])).float().log_softmax(-1)
        total = total - 0.8**level * (wanted * log_probs).sum(-1).mean()
    return total


def medusa_loss(head: MedusaHead, lm_head: nn.Module, batch: Batch, noise: float) -> Tensor:
    """Return Medusa's loss: soft cross-entropy at every depth behind the layer's own, with weights 0.8^k. The layer
    does not learn."""
    levels = len(head.heads) + 1
    n = batch.ids.shape[1] - levels
    with torch.no_grad():
        guess = head(batch.inputs[:, :n], batch.ids[:, 1 : n + 1])
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
        ids, inputs, features = data.at(part)
        end = ids.shape[1] - ahead
        hidden = head(head.read(inputs[:, : end - 1]), ids[:, 1:end])
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
