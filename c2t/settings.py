"""Settings that every run over texts has."""

from dataclasses import dataclass

from c2t.errors import at_least_one
from c2t.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """max_new_tokens: of each text. temperature: of the target, 0 is greedy. seed: of the random streams. InputError
    for what is out of range."""

    max_new_tokens: int = 64
    temperature: float = 0.4
    seed: int = 0

    def __post_init__(self):
        at_least_one(self, "max_new_tokens")
        Sampling(self.temperature, seed=self.seed)  # which refuses what is no temperature

    @property
    def sampling(self) -> Sampling:
        """How the target's tokens are drawn."""
        return Sampling(self.temperature, seed=self.seed)
