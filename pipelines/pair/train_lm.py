"""Train a small causal language model for many epochs over packed documents, resumably and within a time budget."""

import csv
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from c2t.drafting.learner import optimisers_of
from c2t.errors import InputError


@dataclass(frozen=True)
class LMSettings:
    """Settings of a language model's training."""

    epochs: int = 10
    rows: int = 4
    length: int = 512
    learning_rate: float = 2e-3
    warmup: float = 0.02  # share of the run
    weight_decay: float = 0.05
    matrix_weight_decay: float = 0.01
    seed: int = 0
    checkpoint_seconds: int = 120
    minutes: float | None = None  # ends the run, schedule included, even if the epochs are not done


class Packing:
    """Endless stream of batches: each epoch joins the documents in a new order and cuts rows."""

    def __init__(self, documents: list[list[int]], settings: LMSettings):
        self.documents = [torch.tensor(ids) for ids in documents]
        self.settings = settings
        tokens = sum(map(len, documents))
        self.tokens = tokens
        self.steps_per_epoch = (tokens - settings.length) // (settings.rows * settings.length)
        self._epoch: tuple[int, Tensor] = (-1, torch.empty(0))

    def batch(self, step: int) -> Int[Tensor, "rows length"]:
        """Return batch number `step`."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._rows_of(epoch))
        rows = self.settings.rows
        return self._epoch[1][index * rows : (index + 1) * rows]

    def _rows_of(self, epoch: int) -> Int[Tensor, "all length"]:
        generator = torch.Generator().manual_seed(1000 * self.settings.seed + epoch)
        order = torch.randperm(len(self.documents), generator=generator).tolist()
        offset = int(torch.randint(self.settings.length, (1,), generator=generator))
        stream = torch.cat([self.documents[i] for i in order])[offset:]
        rows = stream[: len(stream) // self.settings.length * self.settings.length].view(-1, self.settings.length)
        return rows[torch.randperm(len(rows), generator=generator)]


def next_token_loss(model: nn.Module, ids: Int[Tensor, "rows length"]) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of the next tokens."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def rate(progress: float, warmup: float) -> float:
    """Return the share of the learning rate: linear warm-up, then linear decay to a hundredth."""
    return min(progress / warmup, 1.0) * max(1.0 - progress, 0.01)


# By hand, not by Lightning: two optimisers, a schedule that follows the clock and a resume inside an epoch would be
# manual optimisation, two callbacks and a stateful data module there: more than this loop.
class Progress:
    """Optimisers, log and checkpoint of one run, which resumes where the folder's checkpoint stopped."""

    def __init__(self, model: nn.Module, optimisers: list[torch.optim.Optimizer], folder: Path, every: int):
        self.model, self.optimisers, self.folder, self.every = model, optimisers, folder, every
        self.step, self.seconds = 0, 0.0
        folder.mkdir(parents=True, exist_ok=True)
        if (state := folder / "state.pt").exists():
            saved = torch.load(state, map_location="cpu", weights_only=True)
            model.load_state_dict(saved["model"])
            if len(saved["optimisers"]) != len(optimisers):
                raise InputError(f"{state}: it was made with other optimisers; move it away to start again")
            for optimiser, old in zip(optimisers, saved["optimisers"], strict=True):
                optimiser.load_state_dict(old)
            self.step, self.seconds = saved["step"], saved["seconds"]
        self._since = self._saved = time.monotonic()
        self._before = self.seconds

    def set_rate(self, learning_rate: float) -> None:
        """Set the learning rate of all optimisers."""
        for group in (group for optimiser in self.optimisers for group in optimiser.param_groups):
            group["lr"] = learning_rate

    def advance(self) -> None:
        """Make one step of the optimisers; save a checkpoint if it is time."""
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        self.seconds = self._before + time.monotonic() - self._since
        if time.monotonic() - self._saved > self.every:
            self.save()

    def save(self) -> None:
        """Write the checkpoint."""
        state = {"model": self.model.state_dict(), "optimisers": [o.state_dict() for o in self.optimisers]}
        torch.save(state | {"step": self.step, "seconds": self.seconds}, self.folder / "state.tmp")
        (self.folder / "state.tmp").replace(self.folder / "state.pt")
        self._saved = time.monotonic()

    def log(self, **values: float) -> None:
        """Append a line to log.csv. A changed recipe may bring columns that earlier lines lack."""
        line = {"step": self.step, "seconds": round(self.seconds)} | {k: round(v, 5) for k, v in values.items()}
        path, lines = self.folder / "log.csv", []
        if path.exists():
            with path.open(newline="") as file:
                lines = list(csv.DictReader(file))
        lines.append(line)
        names = dict.fromkeys(name for line in lines for name in line)
        with path.with_suffix(".tmp").open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(names))
            writer.writeheader()
            writer.writerows(lines)
        path.with_suffix(".tmp").replace(path)


def train_lm(model: nn.Module, train: Packing, held: Packing, folder: Path) -> Progress:
    """Train to the end of the epochs or of the minutes, whichever comes first."""
    settings = train.settings
    total = settings.epochs * train.steps_per_epoch
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    matrices = [p for name, p in named.items() if p.ndim == 2 and "layers" in name]
    others = [p for name, p in named.items() if p.ndim != 2 or "layers" not in name]
    decays = settings.weight_decay, settings.matrix_weight_decay
    optimisers = optimisers_of(matrices, others, settings.learning_rate, *decays)
    run = Progress(model, optimisers, folder, settings.checkpoint_seconds)
    losses: list[float] = []
    budget = settings.minutes * 60 if settings.minutes else float("inf")
    while (progress := max((run.step + 1) / total, run.seconds / budget)) <= 1.0:
        learning_rate = settings.learning_rate * rate(progress, settings.warmup)
        run.set_rate(learning_rate)
        loss = next_token_loss(model, train.batch(run.step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        losses.append(float(loss.detach()))
        run.advance()
        if run.step % 50 == 0:
            with torch.no_grad():
                heldout = float(next_token_loss(model, held.batch(run.step // 50 % held.steps_per_epoch)))
            run.log(loss=sum(losses) / len(losses), heldout_loss=heldout, lr=learning_rate)
            losses.clear()
    run.save()
    return run
