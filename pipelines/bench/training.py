"""Rows per second of c2t's training against Lightning with a shuffled DataLoader(TensorDataset), in one run.

python -m pipelines.bench training [ROWS]
"""

import time
from typing import Annotated, NamedTuple

import lightning as L
import torch
import typer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from c2t.classifier import TreeClassifier
from c2t.training.data import NegativeSampling, TrainSettings
from c2t.training.fit import TrainClassifier, quiet
from c2t.training.metrics import Validation
from c2t.training.one_process import OneProcess

ONE_EPOCH = TrainSettings(epochs=1, negatives=None, min_steps=0)
PLAIN_SHARE = 10  # the plain loader gets this part of the rows: it is that much slower


class Rates(NamedTuple):
    """Rows per second of c2t's training and of the usual loader's."""

    c2t: float
    plain: float

    @property
    def ratio(self) -> float:
        return self.c2t / self.plain


class Plain(L.LightningModule):
    """Training of the same network, loss and optimiser, written the usual way."""

    def __init__(self):
        super().__init__()
        self.classifier = TreeClassifier()

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        return nn.functional.binary_cross_entropy_with_logits(self.classifier.logits(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), ONE_EPOCH.lr)


def measure(rows: int) -> Rates:
    """Measure both trainings on random rows."""
    x = torch.rand(rows, len(ONE_EPOCH.features))
    accepted = torch.rand(rows) < x[:, 0]
    everything = NegativeSampling(x, accepted, torch.ones(rows, dtype=torch.bool), ONE_EPOCH)
    part = rows // PLAIN_SHARE
    dataset = TensorDataset(x[:part], accepted[:part].float())
    plain = DataLoader(dataset, ONE_EPOCH.batch_size, shuffle=True)
    module = TrainClassifier(TreeClassifier(), Validation(x, accepted, torch.arange(rows)), ONE_EPOCH)
    return Rates(c2t=rows / seconds_of_epoch(module, everything), plain=part / seconds_of_epoch(Plain(), plain))


def seconds_of_epoch(module: L.LightningModule, loader: object) -> float:
    """Train for one epoch and return its seconds."""
    with quiet():
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            plugins=OneProcess(),
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        start = time.perf_counter()
        trainer.fit(module, loader)
        return time.perf_counter() - start


def main(rows: Annotated[int, typer.Argument(help="Of random data.")] = 2_000_000) -> None:
    """Compare rows per second of training with Lightning's usual data loader."""
    torch.set_num_threads(1)
    rates = measure(rows)
    print(f"Lightning + DataLoader(TensorDataset, shuffle)  {rates.plain / 1e6:6.3f} M rows/s")
    print(f"c2t                                             {rates.c2t / 1e6:6.3f} M rows/s, {rates.ratio:.1f} times")
