"""Libraries are compiled once for a processor, and not having one is no error."""

import subprocess
from pathlib import Path

import pytest

from c2t.kernels import compiled

SOURCES = sorted(place.name for place in Path(compiled.__file__).parent.glob("*.c"))
SOURCE = "long seven(void) { return 7; }\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(compiled.MARCH, "native")
    place = tmp_path / "kernel.c"
    place.write_text(SOURCE)
    return place


def compile_anew(source: Path):
    compiled.library.cache_clear()
    return compiled.library(source)


def made(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "kernels").glob("*"))


@pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler here")
def test_a_library_is_compiled_once(source: Path, tmp_path: Path) -> None:
    assert compile_anew(source).seven() == 7
    (first,) = made(tmp_path)
    before = first.stat().st_mtime_ns
    assert compile_anew(source).seven() == 7
    assert first.stat().st_mtime_ns == before
    source.write_text(SOURCE.replace("7;", "8;"))
    assert compile_anew(source).seven() == 8
    assert len(made(tmp_path)) == 2


@pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler here")
@pytest.mark.parametrize("name", SOURCES)
def test_every_kernel_compiles(name: str) -> None:
    """A source that does not compile would leave its work to torch, and nobody would see it."""
    place = Path(compiled.__file__).with_name(name)
    subprocess.run([compiled.compiler(), *compiled.FLAGS, "-fsyntax-only", str(place)], check=True)


def test_none_without_a_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert compile_anew(source) is None


def test_none_when_switched_off(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.MARCH, compiled.OFF)
    assert compile_anew(source) is None


@pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler here")
def test_none_and_a_line_when_it_does_not_compile(source: Path, tmp_path: Path) -> None:
    source.write_text("long seven(void) { return")
    with pytest.warns(UserWarning, match=r"did not compile kernel\.c, so torch does its work, slower: .*kernel\.c"):
        assert compile_anew(source) is None
    assert made(tmp_path) == []


@pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler here")
def test_a_broken_library_is_made_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(_command: list[str], _source: Path, place: Path) -> None:
        place.parent.mkdir(parents=True)
        place.write_bytes(b"\x7fELF")

    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_compile", break_off)
        assert compile_anew(source) is None
    assert len(made(tmp_path)) == 1
    assert compile_anew(source).seven() == 7


@pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler here")
def test_the_library_of_another_user_is_not_run(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_anew(source)
    (place,) = made(tmp_path)
    monkeypatch.setattr(compiled.os, "getuid", lambda: place.stat().st_uid + 1)
    owner = place.stat().st_uid
    assert (compiled._load(place) is None) == (owner != 0)  # root's is run
