"""Training data of the classifier: harvested nodes, split by conversation, with new negatives in every pass."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.classifier import features
from c2t.errors import InputError
from c2t.kernels.features import DERIVED, WIDE
from c2t.records.reader import describe, read_records
from c2t.storage.checksum import unit_hash
from c2t.training.metrics import Validation
from c2t.training.settings import LABELS, TrainSettings

# Optimiser steps that one training step of Lightning makes: its cost per step is far above that of a tiny network.
STEPS_PER_CHUNK = 64
VALIDATION_ROWS = 65_536
FEWEST = 8  # conversations to validate with: a few texts say little about others


class Split(NamedTuple):
    """Numbers of the training and the validation conversations, of those that have rows."""

    train: Int[Tensor, " t"]
    validation: Int[Tensor, " v"]


def split_conversations(names: Sequence[str], val_fraction: float, fraction: float, seed: int) -> Split:
    """Split conversations into training and validation. InputError for fewer than two.

    names: of `conversation_names`, all different. A hash of its name decides on which side a conversation stands, in
    every training: a network that is trained further is not judged on what it has learned before. val_fraction: share
    to validate with; at least FEWEST are, as far as half of them suffices. fraction: share of the others to train on,
    sampled with `seed`.
    """
    count = len(names)
    if count < 2:
        raise InputError(
            f"{count} conversation with rows cannot be split into training and validation: harvest more prompts"
        )
    hashes = torch.tensor([unit_hash(name) for name in names], dtype=torch.float64)
    below = int((hashes < val_fraction).sum())
    held_out = min(max(below, min(FEWEST, count // 2)), count - 1)
    validation, others = hashes.argsort().tensor_split([held_out])
    others = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))]
    return Split(others[: max(round(fraction * len(others)), 1)], validation)


def conversation_names(prompts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each prompt's conversation.

    Later turns of a conversation contain the earlier ones, and a question that was harvested twice has the same text
    twice, so neither may stand on both sides of the split. The same first turn is the same conversation; in older
    harvests, which have no hash of it, the same number in a file of the same name.
    """
    hashed = all("question" in prompt for prompt in prompts)
    return [str(prompt["question"]) if hashed else prompt_id(prompt) for prompt in prompts]


class NegativeSampling:
    """Batches for training. One pass has all positives and `negatives` random negatives for each, from the whole
    training set.

    Iterating gives one epoch: `passes` passes, each with its own negatives, as chunks of whole batches. label: target
    of each row, if it is not `accepted`. InputError if there are no positives or no negatives.
    """

    def __init__(
        self,
        x: Float[Tensor, "n F"],
        accepted: Bool[Tensor, " n"],
        used: Bool[Tensor, " n"],
        s: TrainSettings,
        label: Float[Tensor, " n"] | None = None,
    ):
        self.x, self.accepted, self.label = x, accepted, accepted if label is None else label
        # 32-bit row numbers: at millions of rows the index is as large as the data
        self.positives = (used & accepted).nonzero().squeeze(1).int()
        self.negatives = (used & ~accepted).nonzero().squeeze(1).int()
        if not len(self.positives) or not len(self.negatives):
            what = "no accepted" if not len(self.positives) else "only accepted"
            raise InputError(f"the training prompts hold {what} nodes: harvest more prompts")
        self.sampled = (
            min(s.negatives * len(self.positives), len(self.negatives)) if s.negatives else len(self.negatives)
        )
        self.rows = len(self.positives) + self.sampled
        self.batch_size, self.chunk = s.batch_size, s.batch_size * STEPS_PER_CHUNK
        self.passes = math.ceil(s.min_steps / (s.epochs * math.ceil(self.rows / s.batch_size))) or 1
        self.generator = torch.Generator().manual_seed(s.seed)

    @property
    def negatives_kept(self) -> float:
        """Share of all negatives that one pass samples."""
        return self.sampled / len(self.negatives)

    @property
    def steps(self) -> int:
        """Optimiser steps of an epoch."""
        return self.passes * math.ceil(self.rows / self.batch_size)

    def __len__(self) -> int:
        return self.passes * math.ceil(self.rows / self.chunk)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.passes):
            for index in self.sample().split(self.chunk):
                yield self.x.index_select(0, index), self.label.index_select(0, index).float()

    def sample(self) -> Int[Tensor, " rows"]:
        """Sample the rows of one pass; return their numbers, shuffled."""
        shuffle = torch.randperm(len(self.negatives), generator=self.generator, dtype=torch.int32)
        index = torch.cat([self.positives, self.negatives[shuffle[: self.sampled]]])
        return index[torch.randperm(len(index), generator=self.generator, dtype=torch.int32)]


class Slices:
    """Validation rows in order; a class, because Lightning reads a list of batches as several loaders."""

    def __init__(self, x: Float[Tensor, "v F"]):
        self.x = x

    def __len__(self) -> int:
        return math.ceil(len(self.x) / VALIDATION_ROWS)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.x.split(VALIDATION_ROWS))


class NodeData(L.LightningDataModule):
    """Harvests in memory (about 60 bytes a row), split by conversation. Rows with an unknown input are dropped,
    such as the log of a probability that underflows on disk, and for a conditional network those whose
    parent was not accepted."""

    def __init__(self, folders: Sequence[str | Path], settings: TrainSettings):
        super().__init__()
        if len({Path(folder).resolve() for folder in folders}) < len(folders):
            raise InputError("a harvest is given twice: the same rows would train and validate; give it once")
        self.harvests = [describe(folder) for folder in folders]
        policies = sorted({str(harvest.provenance.get("policy")) for harvest in self.harvests})
        if len(policies) > 1:
            raise InputError(f"the harvests are of different trees ({'; '.join(policies)}): train on one kind")
        if any(harvest.provenance["M"] != self.harvests[0].provenance["M"] for harvest in self.harvests):
            raise InputError(f"the harvests {', '.join(map(str, folders))} have entropies over different M")
        wide = [name for name in settings.features if name in WIDE]
        derived = [DERIVED[name] for name in settings.features if name in DERIVED]
        records = read_records(folders, list(dict.fromkeys([*wide, *derived, *LABELS[settings.label].reads])))
        x, label = features(records, settings.features), LABELS[settings.label].of(records)
        self.widths = {name: getattr(records, name).shape[1] for name in wide}
        entries = [entry for harvest in self.harvests for entry in harvest.prompts]
        names = conversation_names(entries)
        different = list(dict.fromkeys(names))
        numbers = {name: number for number, name in enumerate(different)}
        conversation = torch.tensor([numbers[name] for name in names])[records.prompt]
        present = conversation.unique()
        with_rows = [different[number] for number in present.tolist()]
        split = split_conversations(with_rows, settings.val_fraction, settings.fraction, settings.seed)
        valid = x.isfinite().all(1) & ~label.isnan()
        self.dropped = int((~valid).sum())
        if records.parent_accepted is not None:
            valid &= records.parent_accepted
        self.training = NegativeSampling(
            x, records.accepted, valid & _rows_of(conversation, present[split.train]), settings, label
        )
        aside = _rows_of(conversation, present[split.validation])
        held_out = valid & aside
        tree = records.tree[held_out].unique_consecutive(return_inverse=True)[1]
        self.validation = Validation(x[held_out], records.accepted[held_out], tree)
        if not self.validation.accepted.any():
            raise InputError("the validation prompts hold no accepted node: harvest more prompts")
        judged = [prompt_id(entries[number]) for number in records.prompt[aside].unique().tolist()]
        self.validation_prompts = tuple(dict.fromkeys(judged))

    def provenance(self, key: str) -> object:
        """Return a value of the harvests' provenance; None where they differ or do not have it."""
        values = [harvest.provenance.get(key) for harvest in self.harvests]
        return values[0] if all(value == values[0] for value in values) else None

    def train_dataloader(self) -> NegativeSampling:
        """Return the training batches (Lightning calls it)."""
        return self.training

    def val_dataloader(self) -> Slices:
        """Return the validation batches (Lightning calls it)."""
        return Slices(self.validation.x)


def _rows_of(conversation: Int[Tensor, " n"], chosen: Int[Tensor, " p"]) -> Bool[Tensor, " n"]:
    table = torch.zeros(int(conversation.max()) + 1, dtype=torch.bool)
    table[chosen] = True
    return table[conversation]


def prompt_id(entry: Mapping[str, Any]) -> str:
    """Return "file:question_id" of a harvest's prompt."""
    return f"{entry.get('file', '')}:{entry.get('question_id', '')}"
