"""A process may be stopped before any line of the code that writes: what was there before or what comes is whole.

No sleeps: a trace function counts the lines of a module as they run, and strikes at the n-th, for every n."""

import ctypes
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from c2t.records import writer as shards
from c2t.records.reader import describe, read_columns, unfinished
from c2t.records.schema import COLUMNS
from c2t.records.writer import ShardWriter, open_folder, sole_writer
from c2t.storage import atomic
from c2t.storage.atomic import new_file, new_folder, standing
from tests.harvests import PROVENANCE, make_harvest, prompt_list, trees

pytestmark = pytest.mark.slow

KILLED = 9  # exit code of a child that was killed on time


class Strike:
    """Context that calls `blow` before the n-th line that runs in one of the files."""

    def __init__(self, number: int, blow: Callable[[], None], files: tuple[str, ...]):
        self.left, self.blow, self.files = number, blow, files

    def __enter__(self) -> "Strike":
        self.before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable | None:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.blow()
        return self._trace


def interrupt() -> None:
    raise KeyboardInterrupt


def survives_interrupt(number: int, work: Callable[[], None], files: tuple[str, ...]) -> bool:
    """Whether the work ends before line `number`, where it is interrupted and goes through its clean-up."""
    try:
        with Strike(number, interrupt, files):
            work()
    except KeyboardInterrupt:
        return False
    return True


def survives_kill(number: int, work: Callable[[], None], files: tuple[str, ...]) -> bool:
    """The same for a process that ends at once, as by SIGKILL: nothing of its clean-up runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads, which never takes locks
        child = os.fork()
    if child == 0:
        try:
            with Strike(number, lambda: os._exit(KILLED), files):
                work()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED)
    return code == 0


STOPS = pytest.mark.parametrize("survives", [survives_interrupt, survives_kill])
SWAPS = pytest.mark.parametrize("swap", [True, False], ids=["swapped in one step", "where the system cannot swap"])
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

    def work() -> None:
        with new_file(path) as new:
            new.write_text("new" * 100)

    for number in range(1, 1000):
        path.write_text("old")
        ended = survives(number, work, FILES)
        assert path.read_text() in ("old", "new" * 100)
        if ended:
            break
    assert path.read_text() == "new" * 100
    assert number > 10


def fill(folder: Path, text: str) -> None:
    (folder / "part").mkdir()
    for name in ("a", "part/b"):
        (folder / name).write_text(text)


def content(folder: Path) -> str:
    """The text of all files of a folder; it fails where one is missing or another's."""
    texts = [(folder / name).read_text() for name in ("a", "part/b")]
    assert len(set(texts)) == 1
    return texts[0]


@STOPS
@SWAPS
def test_a_folder_is_old_or_new_at_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: Callable, swap: bool
) -> None:
    """And the next start finds nothing in its way: it writes a third one, and leaves nothing else behind."""
    if not swap:
        monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    path, seen = tmp_path / "folder", set()

    def write(text: str) -> None:
        with new_folder(path) as new:
            fill(new, text)

    for number in range(1, 1000):
        write("old")
        ended = survives(number, lambda: write("new"), DELETING[survives])
        seen.add(content(standing(path)))
        write("third")
        assert content(path) == "third"
        assert {entry.name for entry in tmp_path.iterdir()} - {".folder.lock"} == {"folder"}
        if ended:
            break
    assert number > 50
    assert seen == {"old", "new"}


@STOPS
def test_a_first_folder_is_whole_or_absent_at_every_line(tmp_path: Path, survives: Callable) -> None:
    path = tmp_path / "folder"

    def work() -> None:
        with new_folder(path) as new:
            fill(new, "new")

    for number in range(1, 1000):
        ended = survives(number, work, DELETING[survives])
        assert not path.exists() or content(path) == "new"
        shutil.rmtree(path, ignore_errors=True)
        if ended:
            break
    assert number > 30


# Between its changes of the disk a killed process loses its memory, wherever it is; an interrupted one goes on with it.
WRITING = {survives_interrupt: (shards.__file__, atomic.__file__), survives_kill: FILES}
SMALL = {"K": 2, "levels": 2}


def harvest(folder: Path, resume: bool = False, overwrite: bool = False) -> None:
    """Harvest into the folder: a shard for each prompt, each of another tree."""
    with sole_writer(folder):
        open_folder(folder, resume, overwrite)
        with ShardWriter(folder, PROVENANCE, prompt_list(2), rows_per_shard=1, overwrite=overwrite) as writer:
            for prompt in range(writer.next_prompt, 2):
                writer.write(trees(1, seed=prompt, **SMALL))


def rows(folder: Path) -> bytes:
    return b"".join(np.ascontiguousarray(column).tobytes() for column in read_columns(folder, list(COLUMNS)).values())


@STOPS
def test_a_harvest_goes_on_after_a_stop_at_every_line(tmp_path: Path, survives: Callable) -> None:
    whole = rows(make_harvest(tmp_path / "whole", prompts=2, trees_each=1, **SMALL))
    folder = tmp_path / "rows"
    for number in range(1, 10_000):
        ended = survives(number, lambda: harvest(folder, resume=folder.exists()), WRITING[survives])
        harvest(folder, resume=True)
        assert rows(folder) == whole
        shutil.rmtree(folder)
        if ended:
            break
    assert number > 50


@STOPS
def test_an_old_harvest_stands_until_the_new_one_is_whole(tmp_path: Path, survives: Callable) -> None:
    new = rows(make_harvest(tmp_path / "new", prompts=2, trees_each=1, **SMALL))
    make_harvest(tmp_path / "made", prompts=1, trees_each=1, **SMALL)
    old, folder, seen = rows(tmp_path / "made"), tmp_path / "rows", set()
    for number in range(1, 10_000):
        shutil.copytree(tmp_path / "made", folder)
        ended = survives(number, lambda: harvest(folder, overwrite=True), WRITING[survives])
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
