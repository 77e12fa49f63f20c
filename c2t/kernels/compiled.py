"""C kernels, compiled for the processor they run on, at first use, by whatever C compiler there is.

Without a compiler (or with C2T_MARCH=off) everything runs on torch alone, slower; so does, with a warning, what a
compiler refuses. `c2t.kernels.libraries` keeps what was compiled.
"""

import ctypes
import errno
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import warnings
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from c2t.errors import one_line, plain
from c2t.kernels import libraries
from c2t.storage import paths
from c2t.storage.atomic import write_text
from c2t.storage.checked import read_file

SOURCES = Path(__file__).parent / "csrc"
MARCH = "C2T_MARCH"  # the processor to compile for, as cc's -march has it; default: this one
OFF = "off"
FLAGS = ("-O3", "-std=gnu11", "-fopenmp", "-fPIC", "-shared")
LIBRARIES = ("-lm",)
COMPILERS = ("gcc", "cc")  # where CC names none; clang does not know GCC's `__builtin_shuffle`
SECONDS = 120  # of a processor that each program of the compiler may take, whatever else the machine does
PATIENCE = 20 * 60.0  # seconds by the clock
# In what a compiler says: what another time may be otherwise.
PASSING = ("Killed signal", "Terminated signal", "No space left", "memory")
FAILED = ".failed"  # ending of the file that says why a library could not be made
# A shell sets the limit: between fork and exec nothing of Python may run, as torch has threads.
LIMITED = ("/bin/sh", "-c", f'ulimit -S -t {SECONDS} 2>/dev/null; exec "$@"', "sh")


class CompilerError(Exception):
    """A compiler refuses the sources, and would do so again."""


@cache
def library(sources: Path) -> ctypes.CDLL | None:
    """Return the library made from a folder of C files, None if it cannot be made here."""
    march, cc = os.environ.get(MARCH, "native"), compiler()
    if march == OFF or cc is None:
        return None
    command = [*cc, *FLAGS, f"-march={march}"]
    # A home folder may be shared by machines whose processors differ.
    text = "".join(path.read_text() for path in sorted(sources.glob("*.[ch]")))
    recipe = f"{command} {_version(cc)} {LIBRARIES} {text} {processor()}".encode()
    folder = libraries.folder()
    place = folder and folder / f"c2t-{hashlib.sha256(recipe).hexdigest()[:16]}.so"
    if place and (there := _load(place)):
        return there
    try:
        with libraries.locked(folder, PATIENCE) if folder else nullcontext():
            # another process may have made it meanwhile
            return (place and _load(place)) or _make(command, sources, place)
    except (OSError, subprocess.SubprocessError, CompilerError) as error:
        _warn(f"{shlex.join(cc)} did not compile c2t's kernels, so torch does their work, slower: {one_line(error)}")
        return None


def changeable(logits: Tensor) -> bool:
    """Return True if a function in C can change these numbers in place: float32 on a CPU, without gaps or gradients."""
    plain = logits.dtype == torch.float32 and logits.device.type == "cpu" and not logits.requires_grad
    return plain and logits.is_contiguous()


def compiler() -> list[str] | None:
    """Return the command of this machine's C compiler, which CC may name; None if there is none."""
    named = os.environ.get("CC", "").strip()
    if not named:
        return next(([found] for name in COMPILERS if (found := shutil.which(name))), None)
    try:
        name, *options = shlex.split(named)
    except ValueError:  # a quotation mark without another
        name, options = named, []
    if (found := shutil.which(name)) is None:
        _warn(f"CC names {named!r}, which is no program here, so torch does the work of a C compiler's kernels, slower")
        return None
    return [found, *options]


def processor() -> str:
    """Return what names this machine's processor and its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return "".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))


def _version(cc: list[str]) -> list[str]:
    """Return what changes when a compiler is replaced; to ask it would take longer than to load the library."""
    programs = [Path(found).resolve() for word in cc if (found := shutil.which(word))]
    return [f"{place} {place.stat().st_size} {place.stat().st_mtime_ns}" for place in programs]


def _load(place: Path) -> ctypes.CDLL | None:
    """Return the library that c2t has put there for this user, None if there is none."""
    content = libraries.read(place)
    try:
        return None if content is None else libraries.load(content)
    except OSError:  # as where a library that it needs is gone
        return None


def _make(command: list[str], sources: Path, place: Path | None) -> ctypes.CDLL:
    """Compile a library and keep it, if there is a place for it, or why it could not be compiled."""
    failed = place and place.with_suffix(FAILED)
    if failed and failed.is_file():
        raise CompilerError(f"{read_file(failed).decode(errors='replace')} (delete {failed} to try again)")
    try:
        content = _compile(command, sources)
    except CompilerError as error:
        with suppress(OSError):
            if failed:
                write_text(failed, str(error))
        raise
    try:
        if place is None:
            raise PermissionError(errno.EACCES, "others can write there", str(paths.cache()))
        libraries.keep(place, content)
    except OSError as error:
        remedy = f"give this user a folder of his own as $C2T_CACHE, and {paths.state()}"
        _warn(f"compiled kernels cannot be kept, so each start makes them anew ({one_line(error)}): {remedy}")
    return libraries.load(content)


def _compile(command: list[str], sources: Path) -> bytes:
    """Return the library made from all sources by one command. Raises CompilerError, and OSError or SubprocessError
    where it may succeed another time."""
    with tempfile.TemporaryDirectory() as folder:
        made, said = Path(folder) / "library.so", Path(folder) / "said"
        whole = [*LIMITED, *command, *map(str, sorted(sources.glob("*.c"))), *LIBRARIES, "-o", str(made)]
        with said.open("wb") as file:  # no pipe: whoever waits for its end waits for the compiler's own children, too
            code = subprocess.run(
                whole, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=PATIENCE, check=False
            ).returncode
        if code == 0:
            return made.read_bytes()
        lines = said.read_text(errors="replace").splitlines() or [f"exit code {code}"]
    line = next((line for line in lines if "error" in line), lines[0])
    if code == -signal.SIGXCPU:
        raise CompilerError(f"it takes more than {SECONDS} s of a processor")
    if code < 0 or any(word in line for word in PASSING):
        raise OSError(line)
    raise CompilerError(line)


def _warn(message: str) -> None:
    warnings.warn(plain(message), stacklevel=4)
