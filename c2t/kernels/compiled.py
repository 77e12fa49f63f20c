"""C kernels, compiled for the processor they run on, at first use, by whatever C compiler there is.

Without a compiler (or with C2T_MARCH=off) everything runs on torch alone, slower; so does, with a warning, what a
compiler refuses. One without OpenMP, as Apple's, makes kernels of one thread. `c2t.kernels.libraries` stores what was
compiled.
"""

import ctypes
import errno
import hashlib
import os
import platform
import re
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
NATIVE, OFF = "native", "off"
OPENMP = "-fopenmp"
FLAGS = ("-O3", "-std=gnu11", OPENMP, "-fPIC", "-shared")
LIBRARIES = ("-lm",)
COMPILERS = ("gcc", "cc", "clang")  # where CC names none
NO_OPENMP = re.compile(r"fopenmp|omp\.h|-lg?omp|libg?omp|library 'g?omp'")  # in what a compiler without it says
SECONDS = 120  # of a processor that each program of the compiler may take, whatever else the machine does
PATIENCE = 20 * 60.0  # seconds of elapsed time
# Words of a compiler's error that another attempt may not meet.
PASSING = ("Killed signal", "Terminated signal", "No space left", "memory")
FAILED = ".failed"  # ending of the file that says why a library could not be made
# A shell sets the limit: between fork and exec nothing of Python may run, as torch has threads.
LIMITED = ("/bin/sh", "-c", f'ulimit -S -t {SECONDS} 2>/dev/null; exec "$@"', "sh")


class CompilerError(Exception):
    """A compiler refuses the sources, and would do so again."""


@cache
def library(sources: Path) -> ctypes.CDLL | None:
    """Return the library made from a folder of C files, None if it cannot be made here."""
    march, cc = os.environ.get(MARCH, NATIVE), compiler()
    if march == OFF or cc is None:
        return None
    # what x86 calls the architecture is the processor on ARM, whose Clang has no -march=native
    on_arm = march == NATIVE and platform.machine() in ("aarch64", "arm64")
    command = [*cc, *FLAGS, "-mcpu=native" if on_arm else f"-march={march}"]
    # A home folder may be shared by machines whose processors differ.
    text = "".join(path.read_text() for path in sorted(sources.glob("*.[ch]")))
    recipe = f"{command} {_version(cc)} {LIBRARIES} {text} {processor()}".encode()
    folder = libraries.folder()
    target = folder and folder / f"c2t-{hashlib.sha256(recipe).hexdigest()[:16]}.so"
    if target and (loaded := _load(target)):
        return loaded
    try:
        with libraries.locked(folder, PATIENCE) if folder else nullcontext():
            # another process may have compiled it in between
            return (target and _load(target)) or _make(command, sources, target)
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
        return next(([program] for name in COMPILERS if (program := shutil.which(name))), None)
    try:
        name, *options = shlex.split(named)
    except ValueError:  # a quotation mark without another
        name, options = named, []
    if (program := shutil.which(name)) is None:
        _warn(f"CC names {named!r}, which is no program here, so torch does the work of a C compiler's kernels, slower")
        return None
    return [program, *options]


def processor() -> str:
    """Return the lines that name this machine's processor and its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return "".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))


def _version(cc: list[str]) -> list[str]:
    """Return what changes when a compiler is replaced; to run it would take longer than to load the library."""
    programs = [Path(program).resolve() for word in cc if (program := shutil.which(word))]
    return [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in programs]


def _load(path: Path) -> ctypes.CDLL | None:
    """Return the library that c2t has stored there for this user, None if there is none."""
    content = libraries.read(path)
    try:
        return None if content is None else libraries.load(content)
    except OSError:  # as where a library that it needs is gone
        return None


def _make(command: list[str], sources: Path, path: Path | None) -> ctypes.CDLL:
    """Compile a library and store it, or the reason why it could not be compiled, where there is a path for them."""
    failed = path and path.with_suffix(FAILED)
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
        if path is None:
            raise PermissionError(errno.EACCES, "others can write there", str(paths.cache()))
        libraries.keep(path, content)
    except OSError as error:
        remedy = f"give this user a folder of his own as $C2T_CACHE, and {paths.state()}"
        _warn(f"compiled kernels cannot be stored, so each start compiles them again ({one_line(error)}): {remedy}")
    return libraries.load(content)


def _compile(command: list[str], sources: Path) -> bytes:
    """Return the library made from all sources by one command, without OpenMP where the compiler has none. Raises
    CompilerError, and OSError or SubprocessError where it may succeed another time."""
    try:
        return _compile_once(command, sources)
    except CompilerError as error:
        if OPENMP not in command or not NO_OPENMP.search(str(error)):
            raise
    last = len(command) - 1 - command[::-1].index(OPENMP)  # CC may have named another one
    content = _compile_once(command[:last] + command[last + 1 :], sources)
    _warn(f"{command[0]} has no OpenMP, so c2t's kernels use one thread; name GCC by CC for more")
    return content


def _compile_once(command: list[str], sources: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made, said = Path(folder) / "library.so", Path(folder) / "said"
        whole = [*LIMITED, *command, *map(str, sorted(sources.glob("*.c"))), *LIBRARIES, "-o", str(made)]
        with said.open("wb") as file:  # no pipe: to wait for its end is to wait for the compiler's own children, too
            code = subprocess.run(
                whole, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=PATIENCE, check=False
            ).returncode
        if code == 0:
            return made.read_bytes()
        lines = said.read_text(errors="replace").splitlines() or [f"exit code {code}"]
    line = next((line for line in lines if NO_OPENMP.search(line)), None)
    line = line or next((line for line in lines if "error" in line), lines[0])
    if code == -signal.SIGXCPU:
        raise CompilerError(f"it takes more than {SECONDS} s of a processor")
    if code < 0 or any(word in line for word in PASSING):
        raise OSError(line)
    raise CompilerError(line)


def _warn(message: str) -> None:
    warnings.warn(plain(message), stacklevel=4)
