"""Result lines are added whole, also behind one that is not."""

from pathlib import Path

import pytest

from c2t.classifier import TreeClassifier
from c2t.errors import InputError
from c2t.storage.atomic import write_text
from c2t.storage.results import append_line
from tests.hostile.starved import files_end_at


def test_a_line_behind_a_torn_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    append_line(path, '{"a": 1}')
    append_line(path, '{"a": 2}')
    path.write_text(path.read_text() + '{"a": ')  # a process was killed here
    append_line(path, '{"a": 3}')
    assert path.read_text().split("\n") == ['{"a": 1}', '{"a": 2}', '{"a": ', '{"a": 3}', ""]


def test_a_full_disk_leaves_nothing_of_a_line(tmp_path: Path) -> None:
    path, new = tmp_path / "results.jsonl", tmp_path / "new.jsonl"
    append_line(path, '{"a": 1}')
    for place, room in ((path, 12), (new, 0)):
        with files_end_at(room), pytest.raises(InputError, match=f"cannot write results to {place}: File too large"):
            append_line(place, '{"a": 222222222222222222222}')
    assert path.read_text() == '{"a": 1}\n'
    assert not new.exists()


def test_a_full_disk_is_an_error_of_the_file(tmp_path: Path) -> None:
    with files_end_at(10), pytest.raises(OSError, match="File too large") as raised:
        write_text(tmp_path / "page", "x" * 100)
    assert raised.value.filename == str(tmp_path / "page")
    with files_end_at(10), pytest.raises(OSError, match="File too large"):
        TreeClassifier().save_pretrained(tmp_path / "classifier")
