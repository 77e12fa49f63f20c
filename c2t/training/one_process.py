"""Lightning in one process on one device, whatever job the process belongs to: by itself it believes the variables of
SLURM, torchrun and MPI, counts tasks that are none of its, and is silent in all but the first of them."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.plugins.environments import LightningEnvironment


class OneProcess(LightningEnvironment):
    """The cluster of a trainer that is alone: one process, the first."""

    def local_rank(self) -> int:
        """Return 0."""
        return 0

    def node_rank(self) -> int:
        """Return 0."""
        return 0

    def teardown(self) -> None:
        """Leave the job's variables to those whom they are for."""


@contextmanager
def first_rank() -> Iterator[None]:
    """Let loggers write, which do so only in the process that Lightning takes for the first."""
    rank = rank_zero_only.rank  # type: ignore[attr-defined]  # where Lightning keeps it
    rank_zero_only.rank = 0  # type: ignore[attr-defined]
    try:
        yield
    finally:
        rank_zero_only.rank = rank  # type: ignore[attr-defined]
