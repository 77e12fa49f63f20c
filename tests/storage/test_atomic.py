"""What is written takes the place of the old in one step, and a failure leaves the old."""

import ctypes
import os
from pathlib import Path

import pytest

from c2t.errors import InputError
from c2t.storage.atomic import check_writable_name, new_file, new_folder, standing, write_text


def fail_halfway(file: Path) -> None:
    file.write_text("half")
    file.parent.write_text("a folder is no file")


def test_a_file_is_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "made" / "a.json"
    write_text(path, "first")
    with new_file(path) as new:
        new.write_text("second")
        assert path.read_text() == "first"
    assert path.read_text() == "second"
    with pytest.raises(IsADirectoryError), new_file(path) as new:
        fail_halfway(new)
    assert path.read_text() == "second"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_goes_on_leading_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file, link = tmp_path / "elsewhere" / "a.json", tmp_path / "a.json"
    file.write_text("first")
    link.symlink_to(file)
    write_text(link, "second")
    assert link.is_symlink()
    assert file.read_text() == "second"


@pytest.mark.parametrize("name", ["a" * 255, "line\nend", ".dot", "...", " "])
def test_every_name_of_a_file_can_be_written(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "first")
    write_text(tmp_path / name, "second")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "second")]


@pytest.mark.parametrize("name", ["a" * 248, "line\nend", ".dot", "...", " "])
def test_every_name_of_a_folder_can_be_replaced_or_is_refused_before(tmp_path: Path, name: str) -> None:
    for text in ("first", "second"):
        check_writable_name(tmp_path / "made" / name)
        with new_folder(tmp_path / "made" / name) as new:
            (new / text).touch()
    assert [path.name for path in (tmp_path / "made").rglob("*")] == [name, "second"]
    with pytest.raises(InputError, match="/ is the root of the file system: give a folder inside it"):
        check_writable_name(Path("/"))
    for made in ("made", "not made"):
        with pytest.raises(InputError, match="name too long: give a folder with a shorter name"):
            check_writable_name(tmp_path / made / ("a" * 249))
        with pytest.raises(InputError, match="is not UTF-8: give a path that is"):
            check_writable_name(tmp_path / made / os.fsdecode(b"caf\xe9"))


@pytest.mark.parametrize("swap", [True, False], ids=["swapped in one step", "where the system cannot swap"])
def test_a_folder_is_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: bool) -> None:
    if not swap:
        monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    path = tmp_path / "made" / "classifier"
    for text in ("first", "second", "third"):
        with new_folder(path) as new:
            (new / "part").mkdir()
            (new / "part" / text).write_text(text)
        assert [file.name for file in path.rglob("*")] == ["part", text]
    with pytest.raises(IsADirectoryError), new_folder(path) as new:
        fail_halfway(new / "file")
    assert (path / "part" / "third").read_text() == "third"
    assert list(path.parent.iterdir()) == [path]


def test_the_old_folder_comes_back_if_the_new_cannot_take_its_place(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    path, rename = tmp_path / "classifier", Path.rename
    with new_folder(path) as new:
        (new / "old").touch()

    def fails(self: Path, to: Path) -> Path:
        if Path(to) == path and self.name.endswith(".new"):
            raise OSError("no")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no"), new_folder(path):
        pass
    assert [file.name for file in path.iterdir()] == ["old"]


def test_the_folder_is_there_after_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(ctypes.CDLL(None), "renameat2"):
        pytest.skip("the system cannot swap two folders in one step")
    path, rename, there = tmp_path / "classifier", Path.rename, []

    def watched(self: Path, to: Path) -> Path:
        moved = rename(self, to)
        there.append(path.exists())
        return moved

    monkeypatch.setattr(Path, "rename", watched)
    for text in ("first", "second"):
        with new_folder(path) as new:
            (new / text).touch()
    assert [file.name for file in path.iterdir()] == ["second"]
    assert there
    assert all(there)  # an exchange by renames would leave an instant without a folder


@pytest.mark.parametrize("there", [True, False], ids=["to a folder", "to nowhere"])
@pytest.mark.parametrize("ending", ["new", "old", "trash", "lock"])
def test_links_are_not_followed(tmp_path: Path, ending: str, there: bool) -> None:
    """Under a name that an exchange uses, whoever put it there."""
    path, elsewhere = tmp_path / "made", tmp_path / "elsewhere"
    if there:
        elsewhere.mkdir()
        (elsewhere / "kept").write_text("kept")
    if ending == "lock":
        elsewhere /= "kept"
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / f".made.{ending}").symlink_to(elsewhere)
    assert standing(path) == path
    for text in ("first", "second"):
        with new_folder(path) as new:
            (new / text).touch()
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path, path / "second"])
    assert not path.is_symlink()
    assert not there or (tmp_path / "elsewhere" / "kept").read_text() == "kept"
