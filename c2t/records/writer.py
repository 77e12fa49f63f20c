"""Writing a harvest that can stop anywhere: every shard holds whole prompts and is complete or absent; the manifest
comes last. A harvest that replaces another is written next to it and takes its place when it is complete."""

import errno
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from c2t.errors import InputError, go_on, one_line
from c2t.records.reader import arrow_type, check_unchanged, read_shards, unfinished
from c2t.records.schema import COLUMNS, MANIFEST, METADATA, REPLACED, SCHEMA_VERSION, ColumnType
from c2t.storage.atomic import (
    NEW,
    TEMPORARY,
    check_replaceable,
    check_writable_name,
    delete,
    new_file,
    recover,
    sibling,
    take_place,
    write_text,
)
from c2t.storage.checksum import checksum, file_checksum
from c2t.storage.lock import locked

ROWS, SECONDS = 1_000_000, 120.0  # limits of a shard: the first one reached ends it, and a kill loses little more
ROW_GROUP = 131_072
# Measured on full EAGLE-2 trees; dictionary encoding of the floats alone would add 2.4 bytes a row.
DICTIONARY = ("parent", "depth", "rank", "token", "prompt", "position")
PLAIN_ENCODING = {"tree": "DELTA_BINARY_PACKED", "node": "DELTA_BINARY_PACKED", "accepted": "RLE"}


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock against other harvests. Raises InputError that names its holder."""
    check_writable_name(folder)
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder))
            recover(folder)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder}: {one_line(error)}") from error
        yield


def open_folder(folder: Path, resume: bool = False, overwrite: bool = False) -> Path:
    """Make `folder` ready for a writer; nothing is removed yet. InputError for a harvest in it, unless it is to be
    resumed or overwritten."""
    if resume and overwrite:
        raise InputError("--resume continues what --overwrite deletes: give one of them")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder")
    if overwrite:
        check_replaceable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    with _writing(folder):
        ours = {*folder.glob("part-*.parquet"), *folder.glob(f"part-*{TEMPORARY}"), *folder.glob(f"{MANIFEST}*")}
        foreign = sorted(path.name for path in {*folder.iterdir()} - ours if not path.name.startswith(REPLACED))
        if foreign:
            raise InputError(f"{folder} holds a file that is no harvest's ({foreign[0]}): choose another folder")
    if not resume and not overwrite and (ours or unfinished(folder)):
        raise InputError(f"{folder} is not empty: continue it with --resume or replace it with --overwrite")
    return folder


class _PromptRows(NamedTuple):
    """The rows of one prompt. trees: number of the first tree after it."""

    prompt: int
    trees: int
    too_long: bool
    table: pa.Table


class ShardWriter:
    """Writer of the rows of one prompt after the other; a shard holds whole prompts, so a harvest can stop anywhere.

    A new writer on an interrupted folder starts at `next_prompt`, the first prompt that is not on disk, so the rows are
    those of an uninterrupted harvest. Leaving the `with` block normally writes the manifest; leaving it by an exception
    writes the complete prompts, and the error then says how to go on. `provenance["environment"]` is recorded but may
    differ when a harvest is resumed; everything else in it must be the same.

    overwrite: the shards are written next to the folder and take its place with the manifest; until then the old
    harvest is there, whole. A later writer without `overwrite` continues them.
    """

    def __init__(
        self,
        folder: Path,
        provenance: Mapping[str, Any],
        prompts: Sequence[Mapping[str, Any]],
        extra: Mapping[str, ColumnType] | None = None,
        rows_per_shard: int = ROWS,
        seconds_per_shard: float = SECONDS,
        overwrite: bool = False,
    ):
        assert {"pair", "K", "levels", "M"} <= provenance.keys(), "training reads these"
        self.out, self.rows_per_shard, self.seconds_per_shard = folder, rows_per_shard, seconds_per_shard
        self.folder = sibling(folder, NEW) if overwrite else unfinished(folder) or folder
        self.types = {name: arrow_type(column) for name, column in {**COLUMNS, **(extra or {})}.items()}
        self.columns = {name: str(kind) for name, kind in self.types.items()}
        self.prompts = [dict(prompt) for prompt in prompts]
        self.provenance = json.loads(json.dumps(dict(provenance)))
        with _writing(folder):
            for path in self.folder.glob(f"*{TEMPORARY}"):
                path.unlink()
        self.overwrite = overwrite
        self.infos = [] if overwrite else list(read_shards(self.folder).values())
        if self.infos:
            self._check_same_settings(self.infos[-1])
            check_unchanged(self.folder)
        self._open: list[_PromptRows] = []
        self._since = time.monotonic()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if error is None:
                self.close()
            elif self.rows:
                self._seal()  # once more where this is what has failed
        except BaseException as unwritten:
            error = unwritten
            raise
        finally:
            if error and (self.rows or not isinstance(error, InputError)):
                go_on(error, self._left())
            if not (self.infos or self.overwrite or self.folder == self.out):
                delete(self.folder)  # of a new harvest, of which no shard could be written

    @property
    def next_prompt(self) -> int:
        """Number of the first prompt that is not written."""
        return self._unsealed[-1].prompt + 1 if self._unsealed else self._sealed("prompts")

    @property
    def next_tree(self) -> int:
        """Number of its first tree."""
        return self._unsealed[-1].trees if self._unsealed else self._sealed("trees")

    @property
    def rows(self) -> int:
        """Rows written so far, those of earlier runs included."""
        return sum(info["rows"] for info in self.infos) + sum(text.table.num_rows for text in self._unsealed)

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
        table = pa.table(arrays, names=list(self.types))
        end = self.next_tree + (int(trees[-1]) + 1 if len(trees) else 0)
        self._open.append(_PromptRows(self.next_prompt, end, too_long, table))
        if sum(text.table.num_rows for text in self._unsealed) >= self.rows_per_shard:
            self._seal()

    def checkpoint(self) -> None:
        """Write what is there as a shard if the last one is `seconds_per_shard` old. For the moments between batches:
        all prompts of a batch come together."""
        if time.monotonic() - self._since >= self.seconds_per_shard:
            self._seal()

    def close(self) -> None:
        """Write the last shard and the manifest, which says that the harvest is complete, and put the harvest into its
        place."""
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
        with _writing(self.out):
            manifest["checksums"] = {name: file_checksum(self.folder / name) for name in manifest["shards"]}
            manifest["sha256"] = checksum(manifest)
            write_text(self.folder / MANIFEST, json.dumps(manifest, indent=1))
            if self.folder != self.out:
                if self.out.is_dir():  # else what is left of it after the exchange would look unfinished
                    write_text(self.out / REPLACED, "")
                take_place(self.folder, self.out)

    def _left(self) -> str:
        """Say what an interruption leaves, and how to go on."""
        if not self.infos:
            return f"nothing was written to {self.out}; run the command again"
        rows, folder = sum(info["rows"] for info in self.infos), unfinished(self.out) or self.out
        done = f"{self._sealed('prompts')} of {len(self.prompts)} texts ({rows:,} rows) are safe in {folder}"
        if folder != self.out:
            return f"{done} and {self.out} is as it was; go on with the same command and --resume, not --overwrite"
        return f"{done}; go on with the same command and --resume"

    # An interrupt may come between any two lines, and the texts are written to disk after it. So one step, that of
    # `_open`, adds a text, and one, that of `infos`, counts a shard as written.

    @property
    def _unsealed(self) -> list["_PromptRows"]:
        return [text for text in self._open if text.prompt >= self._sealed("prompts")]

    def _sealed(self, what: Literal["prompts", "trees"]) -> int:
        return self.infos[-1][what][1] if self.infos else 0

    def _seal(self) -> None:
        texts = self._unsealed
        if not texts:
            return
        table = pa.concat_tables([text.table for text in texts])
        info = {
            "schema_version": SCHEMA_VERSION,
            "rows": table.num_rows,
            "too_long": sum(text.too_long for text in texts),
            "left_out": [text.prompt for text in texts if text.too_long],
            "positives": int(np.count_nonzero(table["accepted"].to_numpy())),
            "prompts": [self._sealed("prompts"), self.next_prompt],
            "trees": [self._sealed("trees"), self.next_tree],
            "prompt_list": checksum(self.prompts),
            "columns": self.columns,
            "provenance": self.provenance,
        }
        path = self.folder / _shard_name(len(self.infos))
        with _writing(self.out):
            if self.overwrite:  # what an earlier harvest with it left unfinished
                delete(self.folder)
            self.overwrite = False
            (self.folder / MANIFEST).unlink(missing_ok=True)  # of a complete harvest that has lost its last shard
            table = table.replace_schema_metadata({METADATA: json.dumps(info)})
            with new_file(path) as new:
                pq.write_table(table, new, row_group_size=ROW_GROUP, **_encodings(self.types))
        self.infos.append(info)
        self._open, self._since = [], time.monotonic()

    def _check_same_settings(self, info: dict[str, Any]) -> None:
        changed = difference(*((source["provenance"], source["columns"]) for source in (info, vars(self))))
        if changed:
            what = "{} = {} there, {} now".format(*changed)
        elif info["prompt_list"] != checksum(self.prompts):
            what = "its prompts are others"
        else:
            return
        raise InputError(
            f"{self.folder} cannot be resumed with other settings: {what}; use the same, --overwrite or --out"
        )


Settings = tuple[Mapping[str, Any], Mapping[str, str]]  # provenance and types of the columns


def difference(old: Settings, new: Settings) -> tuple[str, Any, Any] | None:
    """Return name and values of the first setting in which two harvests differ, None if there is none. The parts of the
    pair (target, draft) are settings of their own; the environment is none."""
    first, second = ({**p, **p.get("sources", {}), "sources": None, "columns": columns} for p, columns in (old, new))
    names = [k for k in sorted(first.keys() | second.keys()) if k != "environment" and first.get(k) != second.get(k)]
    return (names[0], first.get(names[0]), second.get(names[0])) if names else None


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


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into InputError; complete shards stay and can be continued."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"no disk space left for {folder}: free some") from error
        raise InputError(f"cannot write to {folder}: {one_line(error)}") from error
