"""Speeds are measured on a machine that does nothing else: a loaded one is refused."""

import time
from typing import NamedTuple

import psutil

from c2t.errors import InputError

LIMIT = 0.05  # share of the cores
SECONDS = 2.0


class Spent(NamedTuple):
    """Seconds of all cores since the machine started, those of them that were not idle, and those of this process and
    its children."""

    all: float
    busy: float
    ours: float


def spent() -> Spent:
    """Return the seconds until now. A core that waits for a disk is idle; one that another machine took is busy."""
    times = psutil.cpu_times()._asdict()
    guests = ("guest", "guest_nice")  # which are in user and nice as well
    everything = sum(seconds for name, seconds in times.items() if name not in guests)
    me = psutil.Process()
    processes = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    ours = sum(process.user + process.system for process in processes)
    return Spent(everything, everything - times["idle"] - times.get("iowait", 0.0), ours)


def load_of_others(seconds: float = SECONDS) -> float:
    """Return the share of the cores that other processes use during so many seconds, which this waits for."""
    before = spent()
    time.sleep(seconds)
    whole, busy, ours = (after - then for after, then in zip(spent(), before, strict=True))
    return max(0.0, busy - ours) / whole


def check_idle() -> None:
    """Raise InputError if other processes use LIMIT of the cores or more: what is measured then is of no use."""
    share = load_of_others()
    if share >= LIMIT:
        raise InputError(
            f"other processes use {share:.0%} of the cores, and speeds are measured where they use less than "
            f"{LIMIT:.0%}: end them, or wait for them"
        )
