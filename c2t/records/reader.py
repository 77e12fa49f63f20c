"""Read a harvest back in bounded memory."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from c2t.errors import InputError, one_line
from c2t.records.schema import (
    COLUMNS,
    MANIFEST,
    METADATA,
    REPLACED,
    SCHEMA_VERSION,
    ColumnType,
    Harvest,
    Manifest,
    Records,
    Shard,
)
from c2t.storage.atomic import NEW, is_folder, sibling, standing
from c2t.storage.checked import check_version, from_json, read_file
from c2t.storage.checksum import checksum, file_checksum

BATCH = 65_536


def is_complete(folder: Path) -> bool:
    """Return True if the folder has a manifest, which is written last."""
    return (folder / MANIFEST).is_file()


def unfinished(folder: Path) -> Path | None:
    """Return the folder next to a harvest that holds finished shards of its replacement, None if there is none."""
    new = sibling(folder, NEW)
    return new if is_folder(new) and any(new.glob("part-*.parquet")) and not (new / REPLACED).exists() else None


def describe(folder: str | Path) -> Harvest:
    """Return the facts about a complete harvest. Raises InputError that names the file which is missing, damaged or not
    written by c2t, and for an interrupted harvest."""
    folder = standing(Path(folder))
    if not folder.is_dir():
        what = "a file" if folder.exists() else "missing"
        raise InputError(f"{folder} is {what}: give the folder of a harvest, or run c2t harvest")
    infos = read_shards(folder)
    if not is_complete(folder):
        if not infos and not unfinished(folder):
            raise InputError(f"{folder} holds no harvest: make one with c2t harvest --out {folder}")
        raise InputError(f"{folder} is an interrupted harvest (no {MANIFEST}): finish it with c2t harvest --resume")
    manifest = _read_manifest(folder / MANIFEST)
    for name, rows in manifest.shards.items():
        if name not in infos or infos[name]["rows"] != rows:
            raise InputError(f"{folder / name} is missing or has not the {rows} rows that {MANIFEST} counts")
    if sum(manifest.shards.values()) != manifest.rows:
        raise InputError(f"{folder / MANIFEST} counts {manifest.rows} rows, its shards hold others: harvest again")
    return Harvest(folder, **{name: getattr(manifest, name) for name in Harvest._fields if name != "folder"})


def read_columns(folder: str | Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return whole columns of a harvest. They are filled batch by batch, so the peak of memory is the result and one
    batch. Raises InputError for an empty harvest and for unknown columns."""
    harvest = describe(folder)
    if not harvest.rows:
        raise InputError(f"{folder} holds no rows: harvest again with --overwrite and other prompts")
    columns: dict[str, np.ndarray] = {}
    start = 0
    for shard in harvest.shards:
        with _checked(harvest, shard) as file:
            missing = [name for name in names if name not in file.schema_arrow.names]
            if missing:
                names_there = ", ".join(file.schema_arrow.names)
                raise InputError(f"{harvest.folder / shard} has no column {missing[0]}; it has {names_there}")
            for batch in _batches(file, names, harvest.folder / shard):
                for name in names:
                    values = _to_numpy(batch.column(name))
                    if name not in columns:
                        columns[name] = np.empty((harvest.rows, *values.shape[1:]), values.dtype)
                    columns[name][start : start + len(values)] = values
                start += batch.num_rows
    return columns


def read_texts(harvest: Harvest) -> Iterator[dict[str, np.ndarray]]:
    """Yield all columns of each text of a harvest, in order, with no rows where it has none. Memory holds one text and
    one batch. Raises InputError for damaged files, and for rows of texts that the manifest does not list in order."""
    next_number = 0
    for number, pieces in groupby(_pieces(harvest), lambda piece: int(piece.column("prompt")[0].as_py())):
        if not next_number <= number < len(harvest.prompts):
            raise InputError(f"{harvest.folder} holds rows that its {MANIFEST} does not list; harvest again")
        yield from ({} for _ in range(next_number, number))
        batches = list(pieces)
        names = batches[0].schema.names
        yield {name: np.concatenate([_to_numpy(batch.column(name)) for batch in batches]) for name in names}
        next_number = number + 1
    yield from ({} for _ in range(next_number, len(harvest.prompts)))


def _pieces(harvest: Harvest) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a harvest in pieces of one text each; a text may have several."""
    for name in harvest.shards:
        path = harvest.folder / name
        with _checked(harvest, name) as file:
            for batch in _batches(file, file.schema_arrow.names, path):
                prompt = batch.column("prompt").to_numpy()
                starts = np.flatnonzero(np.diff(prompt.astype(np.int64), prepend=-1))
                for start, end in zip(starts, [*starts[1:], len(prompt)], strict=False):  # no rows, no start
                    yield batch.slice(start, end - start)


def further_columns(harvest: Harvest) -> dict[str, ColumnType]:
    """Return the types of a harvest's columns that not every harvest has."""
    with _open(harvest.folder / next(iter(harvest.shards))) as file:
        kinds = {field.name: field.type for field in file.schema_arrow if field.name not in COLUMNS}
    return {
        name: ColumnType(str(kind.value_type), kind.list_size)
        if isinstance(kind, pa.FixedSizeListType)
        else ColumnType(str(kind))
        for name, kind in kinds.items()
    }


def read_records(folders: Sequence[str | Path], further: Sequence[str] = ()) -> Records:
    """Return the columns that features and training read, of one or several harvests.

    further: names of optional columns of Records to read too. Raises InputError for a harvest without accepted nodes.
    """
    parts, trees, prompts = [], 0, 0
    for folder in folders:
        harvest = describe(folder)
        if not harvest.positives:
            raise InputError(f"{folder} holds no accepted node among {harvest.rows}: nothing can be learned from it")
        columns = read_columns(folder, ("joint_prob", "entropy", "depth", "accepted", "tree", "prompt"))
        column = {name: torch.from_numpy(columns.pop(name)) for name in ("joint_prob", "entropy", "depth", "accepted")}
        joint = column["joint_prob"]
        # torch has few operations on uint32; harvests stay far below 2^31 trees.
        tree, prompt = (torch.from_numpy(columns.pop(name).view(np.int32)) for name in ("tree", "prompt"))
        parts.append(
            Records(
                log_joint=joint.masked_fill_(_underflows(joint), 0).log_(),
                entropy=column["entropy"],
                depth=column["depth"],
                accepted=column["accepted"],
                tree=tree.add_(trees),
                prompt=prompt.add_(prompts),
                **_further(folder, further),
            )
        )
        inside = prompt.max() < prompts + len(harvest.prompts) and tree.max() < trees + harvest.trees
        if not (inside and prompt.min() >= prompts and tree.min() >= trees):
            raise InputError(
                f"{folder} holds rows of prompts or trees that its {MANIFEST} does not list; harvest again"
            )
        trees, prompts = trees + harvest.trees, prompts + len(harvest.prompts)
    if len(parts) == 1:
        return parts[0]
    columns = zip(*parts, strict=True)
    return Records(*(None if column[0] is None else torch.cat(column) for column in columns))


def _further(folder: str | Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the optional columns: stored ones as they are; a node's own probabilities as its path's over its parent's
    path's."""
    stored = [name for name in names if name in ("top_probs", "hidden", "rank")]
    columns = {name: torch.from_numpy(c) for name, c in read_columns(folder, stored).items()} if stored else {}
    of_path = {
        "target": "target_prob",
        "log_prob": "joint_prob",
        "max_log_prob": "joint_prob",
        "parent_accepted": "accepted",
    }
    wanted = [name for name in names if name in of_path]
    if not wanted:
        return columns
    path = read_columns(folder, ("node", "parent", *{of_path[name] for name in wanted}))
    parent = path["parent"].astype(np.int64)
    tree_start = np.arange(len(parent)) - path["node"]
    above = tree_start + parent  # the parent's row
    if len(above) and not (tree_start.min() >= 0 and (parent < path["node"]).all() and (parent >= -1).all()):
        raise InputError(f"{folder} holds nodes whose parents do not stand before them; harvest again with --overwrite")
    for name in wanted:
        column = torch.from_numpy(path[of_path[name]])
        if name == "parent_accepted":
            columns[name] = torch.from_numpy(parent < 0) | column[above]
            continue
        parents = torch.where(torch.from_numpy(parent < 0), 1, column[above])
        value = column / parents
        if name == "target":
            columns[name] = value.masked_fill_(_underflows(parents), torch.nan)
            continue
        value = value.masked_fill_(_underflows(column), 0)
        if name == "max_log_prob":
            family = torch.from_numpy(tree_start * (1 << 16) + parent + 1).unique(return_inverse=True)[1]
            value = torch.zeros(int(family.max()) + 1).scatter_reduce(0, family, value, "amax")[family]
        columns[name] = value.where(value > 0, torch.nan).log_()
    return columns


def _underflows(path: Tensor) -> Tensor:
    """Return which probabilities of paths are too small for all of float32's digits, or for any: their logs are finite
    while trees are drafted, and unknown here."""
    return path < torch.finfo(path.dtype).smallest_normal


def read_shards(folder: Path) -> dict[str, Shard]:
    """Return file name -> metadata of the shards of a harvest, complete or not, in order. Raises InputError for a
    damaged or foreign file and for a gap."""
    infos: dict[str, Shard] = {}
    prompts = trees = 0
    for path in sorted(folder.glob("*.parquet")):
        with _open(path) as file:
            metadata = (file.schema_arrow.metadata or {}).get(METADATA)
            rows, schema = file.metadata.num_rows, file.schema_arrow
        if metadata is None:
            raise InputError(f"{path} is a Parquet file of another program, not a shard written by c2t harvest")
        check_version(metadata, path, SCHEMA_VERSION)
        info = from_json(Shard, metadata, f"{path} is damaged: its metadata", "harvest again with --overwrite")
        _check_schema(schema, path)
        if info["prompts"][0] != prompts or info["trees"][0] != trees or rows != info["rows"]:
            raise InputError(f"{path} does not continue the shard before it: harvest again with --overwrite")
        prompts, trees = info["prompts"][1], info["trees"][1]
        infos[path.name] = info
    return infos


def arrow_type(column: ColumnType) -> pa.DataType:
    """Return Parquet's type of a column."""
    kind = pa.type_for_alias(column.dtype)
    return pa.list_(kind, column.size) if column.size else kind


def _check_schema(schema: pa.Schema, path: Path) -> None:
    """Raise InputError unless a shard has every one of COLUMNS, in its type, and else columns of floats, each once."""
    for name, column in COLUMNS.items():
        if schema.names.count(name) != 1 or schema.field(name).type != arrow_type(column):
            raise InputError(f"{path} is damaged: {name} is no column of {arrow_type(column)}; harvest again")
    for field in schema:
        kind = field.type.value_type if isinstance(field.type, pa.FixedSizeListType) else field.type
        if schema.names.count(field.name) != 1 or not (field.name in COLUMNS or pa.types.is_floating(kind)):
            raise InputError(f"{path} is damaged: {field.name} is no column of floats; harvest again")


def _checked(harvest: Harvest, name: str) -> pq.ParquetFile:
    """Return an open shard whose bytes are those that were written: Parquet's checksums cover its pages alone."""
    path = harvest.folder / name
    if harvest.checksums is not None:
        _check(path, harvest.checksums.get(name))
    return _open(path)


def check_unchanged(folder: Path) -> None:
    """Raise InputError for a shard that has not the checksum which a manifest in this folder has of it: a new manifest
    would say that it is whole."""
    sums = is_complete(folder) and _read_manifest(folder / MANIFEST).checksums
    for name, expected in (sums or {}).items():
        if (folder / name).exists():  # else it is written again
            _check(folder / name, expected)


def _check(path: Path, expected: str | None) -> None:
    try:
        changed = file_checksum(path) != expected
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)})") from error
    if changed:
        raise InputError(f"{path} is damaged, it does not have its checksum: harvest again with --overwrite")


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        hint = "delete it and continue with c2t harvest --resume"
        raise InputError(f"{path} is empty, truncated or no Parquet file: {hint}") from error


def _batches(file: pq.ParquetFile, names: Sequence[str], path: Path) -> Iterator[pa.RecordBatch]:
    try:
        for batch in file.iter_batches(BATCH, columns=list(names)):
            if any(column.null_count or _inner(column).null_count for column in batch.columns):
                raise InputError(f"{path} is damaged: it has rows without values; harvest again with --overwrite")
            yield batch
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is damaged: harvest again with --overwrite") from error


def _inner(array: pa.Array) -> pa.Array:
    return array.flatten() if isinstance(array, pa.FixedSizeListArray) else array


def _to_numpy(array: pa.Array) -> np.ndarray:
    if isinstance(array, pa.FixedSizeListArray):
        return array.flatten().to_numpy().reshape(len(array), -1)
    return array.to_numpy(zero_copy_only=False)


def _read_manifest(path: Path) -> Manifest:
    remedy = "delete it and run c2t harvest --resume, which writes it again"
    text = read_file(path)
    check_version(text, path, SCHEMA_VERSION)
    manifest = from_json(Manifest, text, f"{path} is damaged", remedy)
    rest = {name: value for name, value in json.loads(text.decode()).items() if name != "sha256"}
    if manifest.sha256 not in (None, checksum(rest)):
        raise InputError(f"{path} is damaged: it does not have its checksum; {remedy}")
    return manifest
