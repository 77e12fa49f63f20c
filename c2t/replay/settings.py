"""Settings that all runs over texts share."""

from dataclasses import dataclass

from c2t.errors import at_least_one
from c2t.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run: new tokens of each text, the target's temperature (0 is greedy), and the seed of the random
    streams. InputError for values out of range."""

    max_new_tokens: int = 64
    temperature: float = 0.4
    seed: int = 0

    def __post_init__(self):
        at_least_one(self, "max_new_tokens")
        Sampling(self.temperature, seed=self.seed)  # which refuses what is no temperature

    @property
    def sampling(self) -> Sampling:
        """Sampling settings of the target."""
        return Sampling(self.temperature, seed=self.seed)
