"""One writer of a folder at a time; who it is; and nobody is held up by a process that is gone."""

import os
from pathlib import Path

import pytest

from c2t.errors import InputError
from c2t.storage.atomic import new_folder
from c2t.storage.lock import locked
from tests.hostile.strikes import KILLED


def test_the_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    with locked(tmp_path / "made" / "rows"):
        line = rf"rows is being written by process {os.getpid()} on .+ since 20.* UTC: wait until it has ended"
        with pytest.raises(InputError, match=line), locked(tmp_path / "made" / "rows"):
            pass
        with pytest.raises(InputError, match=line), new_folder(tmp_path / "made" / "rows"):
            pass
        with locked(tmp_path / "made" / "others"):
            pass
    with locked(tmp_path / "made" / "rows"):
        pass
    assert list((tmp_path / "made").iterdir()) == []


def test_the_lock_of_a_killed_process_is_nobodys(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with locked(tmp_path / "rows"):
            os._exit(KILLED)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    assert f"process {child} on " in (tmp_path / ".rows.lock").read_text()
    with locked(tmp_path / "rows"):
        assert f"process {os.getpid()} on " in (tmp_path / ".rows.lock").read_text()


def test_a_folder_is_locked_under_each_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "link").symlink_to("rows")
    with locked(tmp_path / "rows"), pytest.raises(InputError, match="being written"), locked(tmp_path / "link"):
        pass
