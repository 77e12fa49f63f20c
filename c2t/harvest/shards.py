"""A harvest in parts: groups of prompts that run together, dealt to the shards of several processes or machines."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from c2t.errors import InputError
from c2t.replay.prompts import Prompt

# Variables that number the processes of a run from 0, and count them: torchrun's (and accelerate's), then Slurm's.
VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))


class PromptGroup(NamedTuple):
    """Conversations that run as one batch. first: number of their first text, counted over all prompts."""

    first: int
    prompts: Sequence[Prompt]

    @property
    def texts(self) -> int:
        """Number of their texts, one a turn."""
        return sum(len(prompt.turns) for prompt in self.prompts)


class ShardNumber(NamedTuple):
    """Which shard of how many, counted from 0. It runs the groups index, index + count, index + 2 count, ..."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "ShardNumber":
        """Read "3/16". InputError for anything else."""
        match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text.strip(), re.ASCII)
        shard = cls(*map(int, match.groups())) if match else None
        if shard is None or shard.index >= shard.count:
            raise InputError(f"shard = {text!r}: write i/n, counted from 0: 0/4 to 3/4 are the four shards of four")
        return shard

    @classmethod
    def of_process(cls, environment: Mapping[str, str] = os.environ) -> "tuple[ShardNumber, str]":
        """Return this process's shard by the first of VARIABLES that counts several processes, and the names of the
        variables; the whole, and "", where none does. InputError for values that are no such numbers."""
        for names in VARIABLES:
            index, count = (environment.get(name, "") for name in names)
            if index and count and count != "1":
                try:
                    return cls.parse(f"{index}/{count}"), " and ".join(names)
                except InputError as error:
                    raise InputError(
                        f"{names[0]} = {index!r} and {names[1]} = {count!r} number no shard: give --shard i/n"
                    ) from error
        return WHOLE, ""

    def folder(self, out: Path) -> Path:
        """Return the shard's own folder inside of `out`; `out` itself for the whole."""
        digits = len(str(self.count))
        return out / f"shard-{self.index:0{digits}}-of-{self.count}" if self.count > 1 else out

    def deal(self, groups: Sequence[PromptGroup]) -> list[PromptGroup]:
        """Return this shard's groups. InputError if it gets none."""
        if self.index >= len(groups):
            raise InputError(
                f"shard {self.index}/{self.count} has nothing to do: the prompts make {len(groups)} groups of --batch "
                f"conversations; use at most {len(groups)} shards, or a smaller --batch"
            )
        return list(groups[self.index :: self.count])


WHOLE = ShardNumber(0, 1)


def grouped(prompts: Sequence[Prompt], batch: int) -> list[PromptGroup]:
    """Return the prompts in groups of `batch`, in their order. Which prompts run together never depends on shards, so
    neither do the rows."""
    groups, first = [], 0
    for start in range(0, len(prompts), batch):
        groups.append(PromptGroup(first, prompts[start : start + batch]))
        first += groups[-1].texts
    return groups
