"""Merging the shards of a harvest: the rows and the files of a single process."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from c2t.errors import InputError, go_on, one_line
from c2t.harvest.harvest import NOTHING
from c2t.output.progress import ProgressCallback
from c2t.records.reader import describe, further_columns, read_shards, read_texts
from c2t.records.schema import COLUMNS, MANIFEST, Harvest
from c2t.records.writer import ShardWriter, difference, open_folder, sole_writer
from c2t.storage.atomic import NEW, check_replaceable, delete, sibling

VARYING = ("live", "hardware")  # entries of the environment in which shards may differ; the others are versions

Entry = dict[str, Any]  # what a manifest says about a text


class Part(NamedTuple):
    """One shard, a harvest of its own. columns: their types. left_out: numbers of its texts that are too long.
    groups: the entries of its texts, by groups of conversations."""

    harvest: Harvest
    columns: dict[str, str]
    left_out: frozenset[int]
    groups: list[list[Entry]]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.harvest.folder.name


def merge(
    folder: Path,
    out: Path,
    *,
    overwrite: bool = False,
    progress: ProgressCallback = lambda done, of, doing: None,
) -> Harvest:
    """Write the harvest whose shards are the folders in `folder` into the folder `out`; return its facts.

    Rows are those of one process, byte for byte. So are the files, unless that process had ended one early, because two
    minutes were over. The shards stay. progress: as in `harvest`. InputError for shards that are missing, unfinished,
    damaged, there twice, or of different harvests or versions of c2t; then nothing is merged.
    """
    check_replaceable(out)
    parts = read_parts(folder)
    if not any(part.harvest.rows for part in parts):
        raise InputError(NOTHING)
    order = dealt(parts)
    turns = [entry for _, group in order for entry in group]
    facts, extra = provenance(parts), further_columns(parts[0].harvest)
    with sole_writer(out):
        folder = open_folder(out, overwrite=overwrite)
        # Always written next to `out`: a damaged shard interrupts this and leaves nothing.
        writer = ShardWriter(folder, facts, turns, extra, seconds_per_shard=inf, overwrite=True)
        try:
            for columns, too_long in texts(parts, order, [*COLUMNS, *extra]):
                writer.write(columns, too_long)
                progress(writer.next_prompt, len(turns), f"{writer.rows:,} rows")
            writer.close()
        except BaseException as error:
            if not writer.overwrite:  # else nothing is written, and what is there is an unfinished harvest
                delete(sibling(out, NEW))
            go_on(error, f"{out} is as it was, and so are the shards; run the command again")
            raise
    return describe(out)


def read_parts(folder: Path) -> list[Part]:
    """Return the shards in a folder by their numbers. InputError unless they are all shards of one harvest."""
    try:
        folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read as a folder of shards ({one_line(error)})") from error
    parts: dict[int, Part] = {}
    count = 0
    for path in folders:
        part = _part(path)
        index, of = part.harvest.provenance["shard"]
        count = count or of
        if of != count:
            raise InputError(f"{folder} holds shards of {count} and of {of} ({part.name}): keep those of one run")
        if index in parts:
            raise InputError(
                f"{folder} holds shard {index} of {of} twice ({parts[index].name}, {part.name}): take one of them away"
            )
        if parts:
            _check_same(next(iter(parts.values())), part)
        parts[index] = part
    if not parts:
        raise InputError(f"{folder} holds no shards: make them with c2t harvest --shard i/n --out {folder}")
    missing = [str(index) for index in range(count) if index not in parts]
    if missing:
        which = f"shard{'s' * (len(missing) > 1)} {', '.join(missing)} of {count}"
        raise InputError(f"{folder} lacks {which}: run c2t harvest --shard {missing[0]}/{count} --out {folder}")
    return [parts[index] for index in range(count)]


def _part(path: Path) -> Part:
    """Return one shard. InputError for anything else."""
    done = describe(path)
    match done.provenance:
        case {"shard": [int(index), int(count)], "batch": int(batch), "environment": {}, "sources": {}} if (
            0 <= index < count and batch > 0
        ):
            pass
        case _:
            raise InputError(f"{path} is a harvest, but no shard of one: take it out of {path.parent}")
    infos = list(read_shards(path).values())
    conversations: list[list[Entry]] = []
    for entry in done.prompts:
        if entry.get("turn") == 0 or not conversations:
            conversations.append([])
        conversations[-1].append(entry)
    starts = range(0, len(conversations), batch)
    groups = [list(chain.from_iterable(conversations[start : start + batch])) for start in starts]
    left_out = frozenset(number for info in infos for number in info.get("left_out", ()))
    return Part(done, infos[0]["columns"], left_out, groups)


def _check_same(first: Part, other: Part) -> None:
    """Raise InputError unless two shards differ in their numbers alone."""
    settings = [({**part.harvest.provenance, "shard": None}, part.columns) for part in (first, other)]
    versions = [
        ({k: v for k, v in part.harvest.provenance.get("environment", {}).items() if k not in VARYING}, {})
        for part in (first, other)
    ]
    changed = difference(*settings) or difference(*versions)
    if changed:
        name, there, here = changed
        raise InputError(
            f"{first.name} and {other.name} are not shards of one harvest: {name} = {there} there, {here} here; "
            "harvest one of them again"
        )


def dealt(parts: Sequence[Part]) -> list[tuple[int, list[Entry]]]:
    """Return all groups in the order of one process: the shard that has each, and the entries of its texts. InputError
    for numbers of groups that no deal gives."""
    count = len(parts)
    total = sum(len(part.groups) for part in parts)
    for index, part in enumerate(parts):
        if len(part.groups) != len(range(index, total, count)):
            raise InputError(f"{part.name} has the prompts of {len(part.groups)} groups, other shards have others")
    return [(group % count, parts[group % count].groups[group // count]) for group in range(total)]


def texts(
    parts: Sequence[Part], order: Sequence[tuple[int, list[Entry]]], names: Sequence[str]
) -> Iterator[tuple[dict[str, np.ndarray], bool]]:
    """Yield the columns of each text, with its trees counted from 0, and whether the text is too long."""
    readers = [enumerate(read_texts(part.harvest)) for part in parts]
    trees = [0] * len(parts)  # number of the next text's first tree, in its shard
    for index, group in order:
        for _ in group:
            number, columns = next(readers[index])
            if columns:
                columns["tree"] = columns["tree"].astype(np.int64) - trees[index]
                if (np.diff(columns["tree"], prepend=0) < 0).any():
                    raise InputError(f"{parts[index].name} holds trees that are not in order: harvest it again")
                trees[index] += int(columns["tree"][-1]) + 1
            else:
                columns = {name: np.empty(0) for name in names}
            yield columns, number in parts[index].left_out


def provenance(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the provenance of the whole: that of the shards, on all of their machines."""
    written = json.loads((parts[0].harvest.folder / MANIFEST).read_bytes())["provenance"]  # in its own order
    facts = {name: value for name, value in written.items() if name != "shard"}
    machines = dict.fromkeys(part.harvest.provenance["environment"].get("hardware", "") for part in parts)
    return {**facts, "environment": {**facts["environment"], "hardware": "; ".join(machines)}}
