"""Flipped bits, as a bad disk makes them."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path


def flips(path: Path, same: Callable[[], bool], count: int) -> Iterator[int]:
    """Flip one bit of a file at a time, at `count` random places; yield those at which `same` says False."""
    whole, draw = path.read_bytes(), random.Random(0)
    for _ in range(count):
        bit = draw.randrange(8 * len(whole))
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        if not same():
            yield bit
    path.write_bytes(whole)
