"""The blocks of a converted GGUF file, next to the checkpoint: a target may compute with them as they are."""

from math import prod
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from c2t.errors import refusing
from c2t.kernels.decoder_layers import Kind, Numbers
from c2t.models.gguf.blocks import NAMED
from c2t.models.gguf.packed import KINDS, numbers_of
from c2t.models.gguf.reader import Gguf
from c2t.models.gguf.weights import Weight
from c2t.storage.tensors import Planned, write_tensors

BLOCKS = Path("blocks") / "model.safetensors"  # in a folder of its own: transformers reads all of the checkpoint's


def storable(weights: list[Weight]) -> list[Weight]:
    """Return the matrices whose blocks the kernels multiply."""
    return [weight for weight in weights if weight.tensor.type in KINDS and len(weight.shape) > 1]


def store(file: Gguf, weights: list[Weight], folder: Path) -> None:
    """Write the blocks of matrices, and the name of each one's type, unless there are none. Raises OSError."""
    stored = storable(weights)
    if stored:
        (folder / BLOCKS).parent.mkdir()
        planned = [
            Planned(weight.name, (weight.tensor.rows, weight.tensor.row_bytes), weight.rows(file)) for weight in stored
        ]
        write_tensors(
            folder / BLOCKS, torch.uint8, planned, {weight.name: weight.tensor.type.name for weight in stored}
        )


def stored_dtype(folder: Path) -> torch.dtype | None:
    """Return what computing with the stored blocks of a checkpoint is called: int4 if some have 4 bits, else int8; None
    for a checkpoint without any. InputError if they are damaged."""
    if not (folder / BLOCKS).is_file():
        return None
    with refusing(f"{folder / BLOCKS}: damaged"), safe_open(folder / BLOCKS, "pt") as file:
        kinds = {KINDS[NAMED[name]] for name in file.metadata().values()}
    return torch.int4 if kinds & {Kind.INT4, Kind.INT4_K} else torch.int8  # type: ignore[attr-defined]


class StoredBlocks:
    """Finds the blocks of a model's weights by where these are in memory, so that a slice of their rows is found, too.

    They are read when they are asked for, and not held. InputError if they are damaged.
    """

    def __init__(self, model: PreTrainedModel, folder: Path):
        self.path = folder / BLOCKS
        with refusing(f"{self.path}: damaged"), safe_open(self.path, "pt") as file:
            self.types = {name: NAMED[kind] for name, kind in file.metadata().items()}
        self._weights = [(name, model.get_parameter(name)) for name in self.types]

    def __call__(self, weight: Tensor) -> Numbers | None:
        """Return the numbers of a weight, or of rows of one; None if there are none."""
        for name, whole in self._weights:
            row = whole.shape[1] * whole.element_size()
            begin = (weight.data_ptr() - whole.data_ptr()) // row
            if begin >= 0 and begin + len(weight) <= len(whole) and weight.shape[1] == whole.shape[1]:
                with refusing(f"{self.path}: damaged"), safe_open(self.path, "pt") as file:
                    rows = file.get_slice(name)[begin : begin + len(weight)]
                    assert rows.shape == (len(weight), self.types[name].bytes_of(weight.shape[1]))
                return numbers_of(rows, self.types[name])
        return None


def size_of(weights: list[Weight]) -> int:
    """Return the bytes of the blocks that `store` writes."""
    return sum(prod((weight.tensor.rows, weight.tensor.row_bytes)) for weight in storable(weights))
