"""Writing a harvest that can stop anywhere: every shard holds whole prompts and is complete or absent; the manifest
comes last."""

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from c2t.errors import InputError, one_line
from c2t.records.reader import read_shards
from c2t.records.schema import COLUMNS, MANIFEST, METADATA, SCHEMA_VERSION, Column
from c2t.storage.atomic import TEMPORARY, new_file, write_text

ROW_GROUP = 131_072
# Measured on full EAGLE-2 trees; dictionary encoding of the floats alone would add 2.4 bytes a row.
DICTIONARY = ("parent", "depth", "rank", "token", "prompt", "position")
PLAIN_ENCODING = {"tree": "DELTA_BINARY_PACKED", "node": "DELTA_BINARY_PACKED", "accepted": "RLE"}


def open_folder(folder: Path, resume: bool = False, overwrite: bool = False) -> Path:
    """Make `folder` ready for a writer. A harvest in it is continued or replaced only if asked for, else InputError;
    nothing is removed yet."""
    if resume and overwrite:
        raise InputError("--resume continues what --overwrite deletes: give one of them")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    with _writing(folder):
        ours = {*folder.glob("part-*.parquet"), *folder.glob(f"part-*{TEMPORARY}"), *folder.glob(f"{MANIFEST}*")}
        foreign = sorted(path.name for path in folder.iterdir() if path not in ours)
        if foreign:
            raise InputError(f"{folder} holds a file that is no harvest's ({foreign[0]}): choose another folder")
    if not resume and not overwrite and ours:
        raise InputError(f"{folder} is not empty: continue it with --resume or replace it with --overwrite")
    return folder


class ShardWriter:
    """Writer of the rows of one prompt after the other; a shard holds whole prompts, so a harvest can stop anywhere.

    A new writer on an interrupted folder starts at `next_prompt`, the first prompt that is not on disk, so the rows are
    those of an uninterrupted harvest. Leaving the `with` block normally writes the manifest; leaving it by an exception
    keeps the complete prompts. `provenance["environment"]` is recorded but may differ when a harvest is resumed;
    everything else in it must be the same. overwrite: the old content of the folder is deleted when the first shard is
    written, so a harvest that gives no rows deletes nothing.
    """

    def __init__(
        self,
        folder: Path,
        provenance: Mapping[str, Any],
        prompts: Sequence[Mapping[str, Any]],
        extra: Mapping[str, Column] | None = None,
        rows_per_shard: int = 1_000_000,
        overwrite: bool = False,
    ):
        assert {"pair", "K", "levels", "M"} <= provenance.keys(), "training reads these"
        self.folder, self.rows_per_shard = folder, rows_per_shard
        self.types = {name: _arrow(column) for name, column in {**COLUMNS, **(extra or {})}.items()}
        self.columns = {name: str(kind) for name, kind in self.types.items()}
        self.prompts = [dict(prompt) for prompt in prompts]
        self.provenance = json.loads(json.dumps(dict(provenance)))
        with _writing(folder):
            for path in folder.glob(f"*{TEMPORARY}"):
                path.unlink()
        self.overwrite = overwrite
        self.infos = [] if overwrite else list(read_shards(folder).values())
        if self.infos:
            self._check_same_settings(self.infos[-1])
        self.next_prompt = self.infos[-1]["prompts"][1] if self.infos else 0
        self.next_tree = self.infos[-1]["trees"][1] if self.infos else 0
        self._start_shard()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif not issubclass(kind, InputError):  # an InputError may be the full disk itself
            self._seal()

    @property
    def rows(self) -> int:
        """Rows written so far, those of earlier runs included."""
        return sum(info["rows"] for info in self.infos) + self._rows

    def write(self, columns: Mapping[str, Any], too_long: bool = False) -> None:
        """Add all rows of prompt number `next_prompt`, possibly none. `tree` counts from 0, and `prompt` is filled in
        here.

        too_long: the prompt has no rows because the target has no room for it; such prompts are counted.
        """
        assert self.next_prompt < len(self.prompts), "more prompts than announced"
        trees = np.asarray(columns["tree"]).astype(np.int64)
        assert (np.diff(trees, prepend=0) >= 0).all(), "trees are in order"
        columns = {**columns, "tree": trees + self.next_tree, "prompt": np.full(len(trees), self.next_prompt)}
        arrays = [_array(columns[name], kind) for name, kind in self.types.items()]
        self._tables.append(pa.table(arrays, names=list(self.types)))
        self._rows += len(trees)
        self._too_long += too_long
        self.next_prompt += 1
        self.next_tree += int(trees[-1]) + 1 if len(trees) else 0
        if self._rows >= self.rows_per_shard:
            self._seal()

    def close(self) -> None:
        """Write the last shard and the manifest, which says that the harvest is complete."""
        assert self.next_prompt == len(self.prompts), "prompts are missing"
        self._seal()
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "rows": self.rows,
            "trees": self.next_tree,
            "positives": sum(info["positives"] for info in self.infos),
            "too_long": sum(info.get("too_long", 0) for info in self.infos),
            "provenance": self.provenance,
            "shards": {_shard_name(i): info["rows"] for i, info in enumerate(self.infos)},
            "prompts": self.prompts,
        }
        with _writing(self.folder):
            write_text(self.folder / MANIFEST, json.dumps(manifest, indent=1))

    def _start_shard(self) -> None:
        self._tables: list[pa.Table] = []
        self._rows, self._too_long, self._first = 0, 0, (self.next_prompt, self.next_tree)

    def _seal(self) -> None:
        if not self._tables:
            return
        table = pa.concat_tables(self._tables)
        info = {
            "schema_version": SCHEMA_VERSION,
            "rows": table.num_rows,
            "too_long": self._too_long,
            "positives": int(np.count_nonzero(table["accepted"].to_numpy())),
            "prompts": [self._first[0], self.next_prompt],
            "trees": [self._first[1], self.next_tree],
            "prompt_list": _digest(self.prompts),
            "columns": self.columns,
            "provenance": self.provenance,
        }
        path = self.folder / _shard_name(len(self.infos))
        with _writing(self.folder):
            # The manifest first: the rest is never taken for complete.
            for old in sorted([*self.folder.glob(MANIFEST), *self.folder.glob("*.parquet")]) if self.overwrite else ():
                old.unlink()
            self.overwrite = False
            table = table.replace_schema_metadata({METADATA: json.dumps(info)})
            with new_file(path) as new:
                pq.write_table(table, new, row_group_size=ROW_GROUP, **_encodings(self.types))
        self.infos.append(info)
        self._start_shard()

    def _check_same_settings(self, info: dict[str, Any]) -> None:
        old, new = (_settings(source["provenance"], source["columns"]) for source in (info, vars(self)))
        changed = [k for k in sorted(old.keys() | new.keys()) if k != "environment" and old.get(k) != new.get(k)]
        if changed:
            what = f"{changed[0]} = {old.get(changed[0])} there, {new.get(changed[0])} now"
        elif info["prompt_list"] != _digest(self.prompts):
            what = "its prompts are others"
        else:
            return
        raise InputError(
            f"{self.folder} cannot be resumed with other settings: {what}; use the same, --overwrite or --out"
        )


def _settings(provenance: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    """Return the provenance that must not change, with the parts of the pair (target, draft) as entries of their
    own."""
    return {**provenance, **provenance.get("sources", {}), "sources": None, "columns": columns}


def _arrow(column: Column) -> pa.DataType:
    kind = pa.type_for_alias(column.dtype)
    return pa.list_(kind, column.size) if column.size else kind


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    values = np.asarray(values)
    if isinstance(kind, pa.FixedSizeListType):
        flat = pa.array(values.reshape(-1)).cast(kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, kind.list_size)
    return pa.array(values).cast(kind)  # raises on overflow


def _encodings(types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    floats = {name: "BYTE_STREAM_SPLIT" for name, kind in types.items() if pa.types.is_floating(kind)}
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": list(DICTIONARY),
        "column_encoding": {**PLAIN_ENCODING, **floats},
        "data_page_version": "2.0",
        "write_page_checksum": True,
    }


def _shard_name(index: int) -> str:
    return f"part-{index:05d}.parquet"


def _digest(prompts: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(prompts, sort_keys=True).encode()).hexdigest()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into InputError; complete shards stay and can be continued."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"no disk space left for {folder}: free some, then continue with --resume") from error
        raise InputError(f"cannot write to {folder}: {one_line(error)}; later continue with --resume") from error
