"""A GGUF file is converted once, whoever else needs it; conversions of files that are gone do not stay."""

import os
import shutil
import threading
import warnings
from pathlib import Path

import pytest

from c2t.models.gguf import conversion
from c2t.models.gguf.conversion import converted
from c2t.storage.lock import locked
from tests.models.gguf.small_files import write

pytestmark = pytest.mark.filterwarnings("ignore:converting")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def made(path: Path, **changes: object) -> Path:
    """Return the conversion of a new file."""
    write(path, "llama", **changes)
    return converted(path)


def test_another_process_is_waited_for(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a thread: its lock is another one, as a process's is."""
    path, begun, waits = tmp_path / "a.gguf", threading.Event(), threading.Event()
    convert, warn = conversion.convert, warnings.warn
    write(path, "llama")
    calls: list[Path] = []

    def slowly(file: object, folder: Path, with_blocks: bool) -> None:
        calls.append(folder)
        begun.set()
        assert waits.wait(60)
        convert(file, folder, with_blocks)

    def heard(message: str, **how: int) -> None:
        warn(message, **how)
        if message.startswith("waits for"):
            waits.set()

    monkeypatch.setattr(conversion, "convert", slowly)
    monkeypatch.setattr(warnings, "warn", heard)
    other = threading.Thread(target=converted, args=(path,))
    other.start()
    begun.wait()
    with pytest.warns(UserWarning, match=rf"waits for process {os.getpid()} on .+, which writes {cache}"):
        folder = converted(path)
    other.join()
    assert calls == [folder]
    assert (folder / "model.safetensors").is_file()


def test_conversions_of_files_that_changed_or_are_gone_are_removed(tmp_path: Path, cache: Path) -> None:
    gone, changed, touched, moved = (tmp_path / f"{name}.gguf" for name in ("gone", "changed", "touched", "moved"))
    places = {
        path: made(path, **{"llama.rope.freq_base": 100.0 + n}) for n, path in enumerate((gone, changed, touched))
    }
    places[moved] = made(moved, **{"llama.rope.freq_base": 200.0})
    gone.unlink()
    write(changed, "llama", **{"llama.rope.freq_base": 300.0})
    os.utime(touched, (1.0, 1.0))
    (tmp_path / "elsewhere").mkdir()
    moved = moved.rename(tmp_path / "elsewhere" / "moved.gguf")
    assert converted(moved) == places[tmp_path / "moved.gguf"]
    (cache / "2-foreign" / "mine").mkdir(parents=True)
    new = made(tmp_path / "new.gguf", **{"llama.rope.freq_base": 400.0})
    left = {places[touched], converted(moved), new, cache / "2-foreign" / "mine"}
    assert {path for path in cache.glob("*/*") if path.is_dir()} == left
    assert set(cache.iterdir()) == {folder.parent for folder in left}


def test_a_conversion_under_its_lock_stays(tmp_path: Path) -> None:
    folder = made(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").unlink()
    with locked(folder.parent):
        made(tmp_path / "b.gguf", **{"llama.rope.freq_base": 100.0})
    assert (folder / "config.json").is_file()
    made(tmp_path / "c.gguf", **{"llama.rope.freq_base": 200.0})
    assert not folder.parent.exists()


def test_of_a_file_in_two_places_the_one_that_was_used_last_counts(tmp_path: Path) -> None:
    folder = made(tmp_path / "a.gguf")
    (tmp_path / "copies").mkdir()
    shutil.copy(tmp_path / "a.gguf", tmp_path / "copies" / "a.gguf")
    assert converted(tmp_path / "copies" / "a.gguf") == folder
    (tmp_path / "a.gguf").unlink()
    made(tmp_path / "b.gguf", **{"llama.rope.freq_base": 100.0})
    assert folder.exists()
