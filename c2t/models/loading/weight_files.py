"""Files of weights, whole or in shards, as tensors by name. Nothing in them is trusted: of a pickle no code is run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor

from c2t.errors import InputError, one_line
from c2t.storage.checked import OPEN, from_json, read_file

INDEX = ".index.json"  # added to the name of a file that is stored in shards


def read_weights(
    folder: Path, safe: str = "model.safetensors", pickled: str = "pytorch_model.bin"
) -> dict[str, Tensor]:
    """Return the tensors of a folder's file of weights, or of the shards that its index names; of a pickle no code is
    run. InputError where there is neither file, or one that cannot be read."""
    for name in (safe, pickled):
        if (folder / name).exists():
            return _read_table(folder / name)
        if (folder / f"{name}{INDEX}").exists():
            return _read_shards(folder / f"{name}{INDEX}")
    raise InputError(f"{folder}: neither {safe} nor {pickled}; copy its weights there, of shards their index too")


@dataclass(frozen=True)
class ShardIndex:
    """Index of shards: tensor -> file in the same folder."""

    __pydantic_config__ = OPEN
    weight_map: Annotated[dict[str, Annotated[str, Field(pattern=r"^[\w.-]+$")]], Field(min_length=1)]  # no path


def files_of_model(folder: Path) -> set[Path]:
    """Return the file of a language model's weights, or the shards that its index names: what transformers reads of a
    folder, whatever other files are in it. InputError for a damaged index. A file may be missing."""
    whole = folder / "model.safetensors"
    index = folder / f"{whole.name}{INDEX}"
    if whole.exists() or not index.exists():
        return {whole}
    return {folder / name for name in from_json(ShardIndex, read_file(index), index).weight_map.values()}


def _read_shards(path: Path) -> dict[str, Tensor]:
    """Return the tensors of all shards of an index; InputError unless they are those that it names."""
    files, state = from_json(ShardIndex, read_file(path), path).weight_map, {}
    for name in sorted(set(files.values())):
        if not (path.parent / name).is_file():
            raise InputError(f"{path}: {name} is not there; copy all of its files")
        shard = _read_table(path.parent / name)
        if shard.keys() != {tensor for tensor, file in files.items() if file == name}:
            raise InputError(f"{path}: {name} holds other weights than it says; copy all of its files again")
        state |= shard
    return state


def _read_table(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one file."""
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler has any
        raise InputError(f"{path.parent}: weights cannot be read ({one_line(error)}); copy the file again") from error
    if not isinstance(state, dict) or not all(map(_is_whole, state.values())):
        raise InputError(f"{path.parent}: weights cannot be read (not a table of tensors); copy the file again")
    return {str(name): tensor for name, tensor in state.items()}


def _is_whole(tensor: object) -> bool:
    """Return True for a tensor that has memory for each of its numbers: a pickle may hold sparse ones, some without
    data, and a single number that stands for many."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def renamed(state: dict[str, Tensor], name_of: Callable[[str], str], folder: Path) -> dict[str, Tensor]:
    """Return weights under other names, without those that `name_of` calls "". InputError for one that is there under
    two names."""
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        new = name_of(name)
        if new in weights:
            raise InputError(f"{folder}: {new} is there twice, as {name} too")
        if new:
            weights[new] = tensor
    return weights
