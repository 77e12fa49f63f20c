"""A process may be stopped before any line of the code that writes: what was there before or what comes is whole.

No sleeps: a trace function counts the lines of a module as they run, and strikes at the n-th, for every n."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from c2t.records import writer as shards
from c2t.records.reader import describe, read_columns, unfinished
from c2t.records.schema import COLUMNS
from c2t.storage import atomic
from c2t.storage.atomic import standing
from tests.harvests import make_harvest
from tests.hostile.strikes import KILLED, SMALL, Strike, fresh, harvest, struck, swapless, write_file, write_folder


def interrupt() -> None:
    raise KeyboardInterrupt


def survives_interrupt(number: int, files: tuple[str, ...], work: Callable, *values: object) -> bool:
    """Whether the work ends before line `number`, where it is interrupted and goes through its clean-up."""
    try:
        with Strike(number, interrupt, files):
            work(*values)
    except KeyboardInterrupt:
        return False
    return True


def survives_kill(number: int, files: tuple[str, ...], work: Callable, *values: object) -> bool:
    """The same for a process that ends at once, as by SIGKILL: nothing of its clean-up runs."""
    process = fresh.Process(target=struck, args=(number, files, work, *values))
    process.start()
    process.join()
    assert process.exitcode in (0, KILLED)
    return process.exitcode == 0


STOPS = pytest.mark.parametrize("survives", [survives_interrupt, survives_kill])
FILES = (atomic.__file__,)
# A kill also strikes in the middle of a deletion; an interrupt there would only find Python's own gaps.
DELETING = {survives_interrupt: FILES, survives_kill: (*FILES, shutil.__file__)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed leaves the system's memory of its files as it is; a test of that need not wait for the
    disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@STOPS
def test_a_file_is_old_or_new_at_every_line(tmp_path: Path, survives: Callable) -> None:
    path = tmp_path / "file"
    for number in range(1, 1000):
        path.write_text("old")
        ended = survives(number, FILES, write_file, path, "new" * 100)
        assert path.read_text() in ("old", "new" * 100)
        if ended:
            break
    assert path.read_text() == "new" * 100
    assert number > 10


def content(folder: Path) -> str:
    """The text of all files of a folder; it fails where one is missing or another's."""
    texts = [(folder / name).read_text() for name in ("a", "part/b")]
    assert len(set(texts)) == 1
    return texts[0]


@pytest.mark.slow
@STOPS
@pytest.mark.parametrize("write", [write_folder, swapless], ids=["swapped in one step", "where the system cannot swap"])
def test_a_folder_is_old_or_new_at_every_line(tmp_path: Path, survives: Callable, write: Callable) -> None:
    """And the next start finds nothing in its way: it writes a third one, and leaves nothing else behind."""
    path, seen = tmp_path / "folder", set()
    for number in range(1, 1000):
        write(path, "old")
        ended = survives(number, DELETING[survives], write, path, "new")
        seen.add(content(standing(path)))
        write(path, "third")
        assert content(path) == "third"
        assert {entry.name for entry in tmp_path.iterdir()} - {".folder.lock"} == {"folder"}
        if ended:
            break
    assert number > 50
    assert seen == {"old", "new"}


@STOPS
def test_a_first_folder_is_whole_or_absent_at_every_line(tmp_path: Path, survives: Callable) -> None:
    path = tmp_path / "folder"
    for number in range(1, 1000):
        ended = survives(number, DELETING[survives], write_folder, path, "new")
        assert not path.exists() or content(path) == "new"
        shutil.rmtree(path, ignore_errors=True)
        if ended:
            break
    assert number > 30


# Between its changes of the disk a killed process loses its memory, wherever it is; an interrupted one goes on with it.
WRITING = {survives_interrupt: (shards.__file__, atomic.__file__), survives_kill: FILES}


def rows(folder: Path) -> bytes:
    return b"".join(np.ascontiguousarray(column).tobytes() for column in read_columns(folder, list(COLUMNS)).values())


@pytest.mark.slow
@STOPS
@pytest.mark.parametrize("complete", [False, True], ids=["a new one", "a complete one without its shard"])
def test_a_harvest_goes_on_after_a_stop_at_every_line(tmp_path: Path, survives: Callable, complete: bool) -> None:
    made = make_harvest(tmp_path / "whole", prompts=2, trees_each=1, **SMALL)
    whole = rows(made)
    folder = tmp_path / "rows"
    for number in range(1, 10_000):
        if complete:
            shutil.copytree(made, folder, ignore=shutil.ignore_patterns("*.parquet"))
        ended = survives(number, WRITING[survives], harvest, folder, folder.exists())
        harvest(folder, resume=True)
        assert rows(folder) == whole
        shutil.rmtree(folder)
        if ended:
            break
    assert number > 50


@pytest.mark.slow
@STOPS
def test_an_old_harvest_stands_until_the_new_one_is_whole(tmp_path: Path, survives: Callable) -> None:
    new = rows(make_harvest(tmp_path / "new", prompts=2, trees_each=1, **SMALL))
    make_harvest(tmp_path / "made", prompts=1, trees_each=1, **SMALL)
    old, folder, seen = rows(tmp_path / "made"), tmp_path / "rows", set()
    for number in range(1, 10_000):
        shutil.copytree(tmp_path / "made", folder)
        ended = survives(number, WRITING[survives], harvest, folder, False, True)
        assert rows(folder) in (old, new)
        seen.add((rows(folder), bool(unfinished(folder))))
        begun = bool(unfinished(folder)) or rows(folder) == new
        harvest(folder, resume=begun, overwrite=not begun)
        assert rows(folder) == new
        assert describe(folder).shards.keys() == {path.name for path in folder.glob("*.parquet")}
        assert not unfinished(folder)
        shutil.rmtree(folder)
        if ended:
            break
    assert number > 50
    assert seen == {(old, False), (old, True), (new, False)}
