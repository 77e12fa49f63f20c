"""Training for a few epochs of smollm2's texts, at a rate that falls over the second half; resumable at any
time."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pipelines.pair.smollm2.rounds import ROWS, compute, training_texts
from pipelines.pair.smollm2.shards import Rows, Text, epoch, rows_of
from pipelines.pair.train_lm import Progress

LEARNING_RATE, WEIGHT_DECAY = 2e-3, 1e-2
WARMUP, LOG, CHECKPOINT = 50, 50, 120  # steps, steps, seconds


def train_epochs(
    epochs: int,
    model: nn.Module,
    losses: Callable[[Rows], dict[str, Tensor]],
    source: Path,
    folder: Path,
    device: torch.device,
) -> None:
    """Train a model on the texts that are there now, answers only; go on from the folder's checkpoint. losses: of a
    batch, the one to minimise first, and further figures for the log."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    run = Progress(model, [optimiser], folder, CHECKPOINT)
    texts = training_texts(source)
    steps = epochs * len(epoch(texts, ROWS, 0))
    batches: list[list[Text]] = []
    recent: list[dict[str, Tensor]] = []
    while run.step < steps:
        batches = batches or epoch(texts, ROWS, run.step)
        left = 2 * (1 - run.step / steps)  # the rate falls over the second half
        run.set_rate(learning_rate := LEARNING_RATE * min(1.0, (run.step + 1) / WARMUP, left))
        torch.manual_seed(run.step)
        rows = rows_of(batches.pop(), "features", questions=False).to(device)
        with compute(device):
            figures = losses(rows)
        next(iter(figures.values())).backward()
        run.advance()
        recent.append({name: loss.detach() for name, loss in figures.items()})
        if run.step % LOG == 0 or run.step == steps:
            means = {name: float(sum(step[name] for step in recent) / len(recent)) for name in figures}
            run.log(**means, lr=learning_rate)
            print(f"{run.step} of {steps}: " + ", ".join(f"{n} {v:.4f}" for n, v in means.items()), flush=True)
            recent = []
    run.save()
