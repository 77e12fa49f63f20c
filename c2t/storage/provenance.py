"""Facts besides the settings that a result depends on: versions, commit, hardware."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from c2t.storage.paths import checkout

PACKAGES = ("c2t", "torch", "transformers", "lightning", "pyarrow", "numpy")


def environment() -> dict[str, str]:
    """Return the versions of Python and of PACKAGES ("" where one is not installed), the checkout's commit ("" outside
    of one), and the hardware."""
    versions = {name: _version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **versions, "commit": _commit(), "hardware": hardware()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # of an extra
        return ""


def hardware() -> str:
    """Return the name of the accelerator, or else of the processor with the number of cores that this process may
    use."""
    import torch  # noqa: PLC0415 - takes seconds, and the command line reads its options before that

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor()}, {cores} cores"


def processor() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    folder = checkout()
    if folder is None:  # an environment may lie in somebody else's repository
        return ""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
