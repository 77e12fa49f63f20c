"""What is struck at the n-th line that runs, and the processes that are killed so."""

import ctypes
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from c2t.records.writer import ShardWriter, open_folder, sole_writer
from c2t.storage.atomic import new_file, new_folder
from tests.harvests import PROVENANCE, prompt_list, trees

KILLED = 9  # exit code of a process that was killed on time
# A fork of the tests' own process takes the longer the more other tests have left in its memory.
fresh = multiprocessing.get_context("forkserver")
fresh.set_forkserver_preload([__name__])


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


def struck(number: int, files: tuple[str, ...], work: Callable, *values: object) -> None:
    """Work in a process of its own, and end it before line `number`."""
    os.fsync = lambda _: None  # as in the tests
    with Strike(number, lambda: os._exit(KILLED), files):
        work(*values)


def write_file(path: Path, text: str) -> None:
    with new_file(path) as new:
        new.write_text(text)


def write_folder(path: Path, text: str) -> None:
    with new_folder(path) as new:
        (new / "part").mkdir()
        for name in ("a", "part/b"):
            (new / name).write_text(text)


def swapless(path: Path, text: str) -> None:
    """Write a folder where the system cannot exchange two of them in one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda _: object())
        write_folder(path, text)


SMALL = {"K": 2, "levels": 2}


def harvest(folder: Path, resume: bool = False, overwrite: bool = False) -> None:
    """Harvest into the folder: a shard for each prompt, each of another tree."""
    with sole_writer(folder):
        open_folder(folder, resume, overwrite)
        with ShardWriter(folder, PROVENANCE, prompt_list(2), rows_per_shard=1, overwrite=overwrite) as writer:
            for prompt in range(writer.next_prompt, 2):
                writer.write(trees(1, seed=prompt, **SMALL))
