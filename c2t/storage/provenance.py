"""What a result depends on besides its settings: versions, commit, hardware."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGES = ("torch", "transformers", "lightning", "pyarrow", "numpy")


def environment() -> dict[str, str]:
    """Versions of Python, c2t and what it computes with, the checkout's commit ("" outside one), and the machine."""
    versions = {name: version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **versions, "commit": _commit(), "hardware": hardware()}


def hardware() -> str:
    """The accelerator, else the processor and how many cores this process may use."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor()}, {cores} cores"


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
