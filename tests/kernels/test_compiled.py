"""Libraries are compiled once for a processor, only what c2t made is run, and not having one is no error."""

import ctypes
import hmac
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from c2t.kernels import compiled, libraries

SOURCE = "long seven(void) { return 7; }\n"
FOREIGN = '#include <stdio.h>\n__attribute__((constructor)) static void run(void) { fclose(fopen("%s", "w")); }\n'
needs_compiler = pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler here")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv(compiled.MARCH, "native")
    place = tmp_path / "sources" / "kernel.c"
    place.parent.mkdir()
    place.write_text(SOURCE)
    return place


def library_in_new_process(source: Path) -> ctypes.CDLL | None:
    """Return what a process that has loaded nothing yet would have."""
    return compiled.library.__wrapped__(source.parent)


def made(tmp_path: Path, folder: str = "cache/kernels") -> list[Path]:
    return sorted((tmp_path / folder).glob("*.so"))


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], int]]:
    """A function that makes a compiler of a line of shell, and returns what says how often it was called."""

    def made(line: str = 'exec gcc "$@"', options: str = "") -> Callable[[], int]:
        place, calls = tmp_path / "a compiler", tmp_path / "calls"
        place.write_text(f"#!/bin/sh\necho >> {shlex.quote(str(calls))}\n{line}\n")
        place.chmod(0o755)
        monkeypatch.setenv("CC", f"{shlex.quote(str(place))}{options}")
        return lambda: len(calls.read_text().splitlines()) if calls.exists() else 0

    return made


@needs_compiler
def test_a_library_is_compiled_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library_in_new_process(source).seven() == 7
    [first] = made(tmp_path)
    before = first.stat().st_mtime_ns
    assert library_in_new_process(source).seven() == 7
    assert first.stat().st_mtime_ns == before
    changes = (
        lambda: source.write_text(SOURCE.replace("7;", "8;")),
        lambda: monkeypatch.setattr(compiled, "FLAGS", (*compiled.FLAGS, "-DUNUSED")),
        lambda: source.with_name("header.h").write_text("#define MORE 1\n"),
    )
    for libraries_there, change in enumerate(changes, 2):
        change()
        assert library_in_new_process(source).seven() == 8
        assert len(made(tmp_path)) == libraries_there


@needs_compiler
def test_all_files_of_a_folder_are_one_library(source: Path, tmp_path: Path, counted) -> None:
    calls = counted()
    source.with_name("other.c").write_text("long seven(void);\nlong eight(void) { return seven() + 1; }\n")
    found = library_in_new_process(source)
    assert (found.seven(), found.eight()) == (7, 8)
    assert (len(made(tmp_path)), calls()) == (1, 1)


@needs_compiler
def test_who_comes_meanwhile_waits(source: Path, counted) -> None:
    calls = counted('sleep 0.2; exec gcc "$@"')
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(library_in_new_process, [source] * 3))
    assert [library.seven() for library in found] == [7, 7, 7]
    assert calls() == 1


@needs_compiler
def test_every_kernel_compiles_and_is_declared_in_the_header() -> None:
    """A source that does not compile would leave the work to torch, and nobody would see it. Not every compiler has
    OpenMP; one for ARM is there where `apt-get install gcc-aarch64-linux-gnu` was called."""
    flags = [flag for flag in compiled.FLAGS if flag != compiled.OPENMP] + ["-fsyntax-only"]
    flags += ["-Werror=missing-prototypes", *compiled.SOURCES.glob("*.c")]
    names = filter(shutil.which, ("gcc", "clang", "aarch64-linux-gnu-gcc"))
    for command in (*([name] for name in names), [*compiled.compiler(), compiled.OPENMP]):
        subprocess.run([*command, *flags], check=True)


@pytest.mark.parametrize(("variable", "value"), [("PATH", ""), (compiled.MARCH, compiled.OFF)])
def test_none_without_a_compiler(variable: str, value: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or where it is switched off."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(variable, value)
    assert library_in_new_process(source) is None


@needs_compiler
def test_cc_names_the_compiler(source: Path, tmp_path: Path, counted) -> None:
    calls = counted(options=" -DUNUSED")
    assert library_in_new_process(source).seven() == 7
    assert calls() == 1
    with (tmp_path / "a compiler").open("a") as file:
        file.write("# another version\n")
    assert library_in_new_process(source).seven() == 7
    assert calls() == 2


@pytest.mark.parametrize("named", ["no-such-compiler -O2", "'half a name"])
def test_a_compiler_that_is_not_there_is_named(named: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", named)
    with pytest.warns(UserWarning, match="CC names .*, which is no program here"):
        assert library_in_new_process(source) is None


@needs_compiler
def test_none_and_a_line_when_it_does_not_compile(source: Path, tmp_path: Path, counted) -> None:
    """It is tried once for sources and a compiler."""
    calls = counted()
    source.write_text("long seven(void) { return")
    line = r"did not compile c2t's kernels, so torch does their work, slower: .*kernel\.c.*error"
    for _ in range(3):
        with pytest.warns(UserWarning, match=line) as said:
            assert library_in_new_process(source) is None
        assert len(said) == 1
    assert "to try again" in str(said[0].message)
    assert made(tmp_path) == []
    assert calls() == 1
    source.write_text(SOURCE)
    assert library_in_new_process(source).seven() == 7


@pytest.mark.parametrize("line", ["echo 'error: No space left on device'; exit 1", "kill -9 $$"])
def test_what_may_succeed_another_time_is_tried_again(line: str, source: Path, counted) -> None:
    calls = counted(line)
    for tries in (1, 2):
        with pytest.warns(UserWarning, match="did not compile"):
            assert library_in_new_process(source) is None
        assert calls() == tries


def test_the_processor_not_the_clock_limits_a_compiler(source: Path, counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "LIMITED", ("/bin/sh", "-c", 'ulimit -S -t 1; exec "$@"', "sh"))
    calls = counted("while :; do :; done")
    for _ in range(2):
        with pytest.warns(UserWarning, match="more than 120 s of a processor"):
            assert library_in_new_process(source) is None
    assert calls() == 1


@pytest.mark.parametrize(
    "said",
    [
        "clang: error: unsupported option '-fopenmp'",
        "kernel.c:1:10: fatal error: 'omp.h' file not found",
        "/usr/bin/ld: cannot find -lgomp: No such file\ncollect2: error: ld returned 1 exit status",
    ],
)
@needs_compiler
def test_a_compiler_without_openmp_makes_kernels_of_one_thread(said: str, source: Path, counted) -> None:
    calls = counted(f'case "$*" in *-fopenmp*) echo {shlex.quote(said)}; exit 1;; esac; exec gcc "$@"')
    with pytest.warns(UserWarning, match="has no OpenMP, so c2t's kernels use one thread"):
        assert library_in_new_process(source).seven() == 7
    assert library_in_new_process(source).seven() == 7  # without another word
    assert calls() == 2


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "arm64"])
def test_arm_names_its_processor(machine: str, source: Path, counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    counted('echo "error: $*"; exit 1')
    with pytest.warns(UserWarning, match="-march=native" if machine == "x86_64" else "-mcpu=native"):
        assert library_in_new_process(source) is None


def one_bit(content: bytes) -> bytes:
    half = len(content) // 2
    return content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]


def a_pipe(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def of_another_user(place: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give a file away")
    os.chown(place, 65534, 65534)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "in half": lambda place: place.write_bytes(place.read_bytes()[: place.stat().st_size // 2]),
    "zeros": lambda place: place.write_bytes(place.read_bytes()[:4096].ljust(place.stat().st_size, b"\0")),
    "one bit": lambda place: place.write_bytes(one_bit(place.read_bytes())),
    "a pipe": a_pipe,
    "nothing": lambda place: place.write_bytes(b""),
    "of another user": of_another_user,
    "others can write": lambda place: place.chmod(0o666),
}


@needs_compiler
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_or_not_this_users_is_made_again(damage: str, source: Path, tmp_path: Path) -> None:
    library_in_new_process(source)
    (place,) = made(tmp_path)
    DAMAGES[damage](place)
    assert libraries.read(place) is None
    assert library_in_new_process(source).seven() == 7
    assert libraries.read(place)


@needs_compiler
@pytest.mark.parametrize("how", ["content", "link", "signed by another user", "signed for another name"])
def test_foreign_code_is_not_run(how: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library_in_new_process(source)
    (place,), ran, foreign = made(tmp_path), tmp_path / "ran", tmp_path / "foreign.so"
    code = foreign.with_suffix(".c")
    code.write_text(FOREIGN % ran)
    subprocess.run([*compiled.compiler(), "-shared", "-fPIC", "-o", foreign, code], check=True)
    content = foreign.read_bytes()
    if how == "content":
        place.write_bytes(content)
    elif how == "link":
        place.unlink()
        place.symlink_to(foreign)
    elif how == "signed by another user":
        with monkeypatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(tmp_path / "of another"))
            libraries.keep(place, content)
            assert libraries.read(place) == content
    else:
        libraries.keep(tmp_path / "other.so", content)
        (tmp_path / "other.so").replace(place)
    assert library_in_new_process(source).seven() == 7
    assert not ran.exists()
    assert foreign.read_bytes() == content
    libraries.load(content)  # as it would run
    assert ran.exists()


@needs_compiler
def test_the_bytes_that_were_checked_are_loaded(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever exchanges the file after the check comes too late."""
    library_in_new_process(source)
    (place,), load = made(tmp_path), libraries.load

    def late(content: bytes) -> ctypes.CDLL:
        place.write_bytes(b"another library")
        return load(content)

    monkeypatch.setattr(libraries, "load", late)
    assert library_in_new_process(source).seven() == 7
    assert place.read_bytes() == b"another library"


@needs_compiler
def test_the_digest_is_hmac_sha_256_of_name_and_content(source: Path, tmp_path: Path) -> None:
    library_in_new_process(source)
    (place,), key = made(tmp_path), (tmp_path / "state" / "c2t" / "kernels.key").read_bytes()
    content, digest = place.read_bytes()[:-32], place.read_bytes()[-32:]
    assert digest == hmac.digest(key, place.name.encode() + b"\0" + content, "sha256")


@needs_compiler
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_others_can_write_is_not_used(mode: int, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    assert library_in_new_process(source).seven() == 7
    assert not list(folder.iterdir())
    (place,) = made(tmp_path, "state/c2t/kernels")
    before = place.stat().st_mtime_ns
    assert library_in_new_process(source).seven() == 7
    assert place.stat().st_mtime_ns == before


@needs_compiler
def test_what_a_process_grants_others_is_not_granted_here(source: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        library_in_new_process(source)
    finally:
        os.umask(before)
    (place,), key = made(tmp_path), tmp_path / "state" / "c2t" / libraries.KEY
    assert [each.stat().st_mode & 0o777 for each in (place.parent, place, key)] == [0o700, 0o600, 0o600]
    assert libraries.read(place)


@needs_compiler
def test_a_key_that_others_could_read_is_replaced(source: Path, tmp_path: Path) -> None:
    library_in_new_process(source)
    key = tmp_path / "state" / "c2t" / libraries.KEY
    before = key.read_bytes()
    key.chmod(0o644)
    assert library_in_new_process(source).seven() == 7
    assert key.read_bytes() != before
    assert key.stat().st_mode & 0o777 == 0o600
    (place,) = made(tmp_path)
    assert libraries.read(place)


@needs_compiler
@pytest.mark.parametrize("missing", ["state", "both"])
def test_where_nothing_can_be_kept_each_start_compiles(
    missing: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    if missing == "both":
        monkeypatch.setenv("C2T_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        with pytest.warns(UserWarning, match="compiled kernels cannot be stored, so each start compiles them") as said:
            assert library_in_new_process(source).seven() == 7
        assert len(said) == 1


@needs_compiler
def test_without_files_in_memory_a_copy_of_ones_own_is_loaded(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert library_in_new_process(source).seven() == 7


@needs_compiler
def test_a_lock_that_is_held_delays_but_does_not_stop(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked, start = libraries.locked, time.monotonic()
    monkeypatch.setattr(libraries, "locked", lambda path, _: locked(path, 0.2))
    with locked(libraries.folder(), 1.0):
        assert library_in_new_process(source).seven() == 7
    assert time.monotonic() - start >= 0.2
