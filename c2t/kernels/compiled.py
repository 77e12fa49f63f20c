"""C kernels, compiled for the processor they run on, at first use, by whatever C compiler there is.

Without a compiler (or with C2T_MARCH=off) everything runs on torch alone, slower; so does, with a warning, what a
compiler refuses.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from c2t.storage import paths

MARCH = "C2T_MARCH"  # the processor to compile for, as cc's -march has it; default: this one
OFF = "off"
FLAGS = ("-O3", "-std=gnu11", "-fopenmp", "-fPIC", "-shared")
LIBRARIES = ("-lm",)
COMPILERS = ("gcc", "cc")  # clang does not know GCC's `__builtin_shuffle`
SECONDS = 120


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """Return the library made from a C file, None if it cannot be made here."""
    march, cc = os.environ.get(MARCH, "native"), compiler()
    if march == OFF or cc is None:
        return None
    command = [cc, *FLAGS, f"-march={march}"]
    # A home folder may be shared by machines whose processors differ.
    text = "".join(path.read_text() for path in (*sorted(source.parent.glob("*.h")), source))
    recipe = f"{command} {LIBRARIES} {text} {processor()}".encode()
    place = paths.cache() / "kernels" / f"{source.stem}-{hashlib.sha256(recipe).hexdigest()[:16]}.so"
    if (there := _load(place)) is not None:
        return there
    try:
        _compile(command, source, place)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip() or str(error)
        warnings.warn(
            f"{cc} did not compile {source.name}, so torch does its work, slower: {said.splitlines()[0]}", stacklevel=2
        )
        return None
    return _load(place)


def changeable(logits: Tensor) -> bool:
    """Return True if a function in C can change these numbers in place: float32 on a CPU, without gaps or gradients."""
    plain = logits.dtype == torch.float32 and logits.device.type == "cpu" and not logits.requires_grad
    return plain and logits.is_contiguous()


def compiler() -> str | None:
    """Return the path of this machine's C compiler, None if there is none."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def processor() -> str:
    """Return what names this machine's processor and its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return "".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))


def _load(place: Path) -> ctypes.CDLL | None:
    """Return a library that this user (or root) has put there, since loading it runs it; None if there is no such."""
    try:
        return ctypes.CDLL(str(place)) if place.stat().st_uid in (os.getuid(), 0) else None
    except OSError:  # absent or broken
        return None


def _compile(command: list[str], source: Path, place: Path) -> None:
    """Compile beside the place and move the result there, since another process may be doing the same."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = Path(folder) / place.name
        whole = [*command, str(source), *LIBRARIES, "-o", str(made)]
        subprocess.run(whole, check=True, capture_output=True, timeout=SECONDS)
        made.replace(place)
