"""Settings of a harvest: the trees, and the texts along which they are drafted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from c2t.errors import InputError, at_least_one
from c2t.harvest.extra_columns import COLUMNS, types
from c2t.policies.eagle2 import Eagle2
from c2t.policies.limits import MOST_LEVELS, MOST_TOKENS
from c2t.policies.mcsd_plus import MCSDPlus
from c2t.protocols import Policy
from c2t.replay.settings import RunSettings

MOST_CHILDREN, MOST_NODES = 256, MOST_TOKENS - 1  # the column rank counts to 255, the root is no drafted node

POLICIES: dict[str, Callable[..., Any]] = {
    "eagle2": lambda K, levels, M: Eagle2(K, levels, None, M),
    "mcsd+": lambda K, levels, M: MCSDPlus(K, levels - 1, M=M),
}


@dataclass(frozen=True, kw_only=True)
class HarvestSettings(RunSettings):
    """Settings of a harvest.

    K, levels, M: the full EAGLE-2 tree and its entropy; for MCSD+, K forks of levels - 1 drafted tokens. live: run the
    target on every tree instead of replaying its text; the rows are the same. batch: conversations at a time; it bounds
    memory and does not change the rows beyond the last bit. columns: extra ones (`c2t.harvest.extra_columns`).
    positions: where trees are drafted: "visited", in the rounds of a live run; "all", at every position of the text.
    """

    K: int = 10
    levels: int = 11
    M: int | None = 1000
    max_new_tokens: int = 128
    live: bool = False
    batch: int = 16
    policy: str = "eagle2"
    columns: Sequence[str] = ()
    positions: str = "visited"

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, "K", "levels", "M", "batch")
        if self.K > MOST_CHILDREN or self.levels > MOST_LEVELS or self.nodes > MOST_NODES:
            sizes = f"at most {MOST_CHILDREN} children, {MOST_LEVELS} levels and {MOST_NODES:,} nodes a tree"
            raise InputError(f"K = {self.K}, levels = {self.levels}: {self.nodes:,} nodes; a harvest stores {sizes}")
        types(self.columns, 1)
        if self.policy not in POLICIES:
            raise InputError(f"policy = {self.policy!r} cannot be harvested; known: {', '.join(POLICIES)}")
        if self.policy == "mcsd+" and self.levels < 2:
            raise InputError(
                f"levels = {self.levels}: the first level of mcsd+ holds the target's tokens; use at least 2"
            )
        if self.positions not in ("visited", "all"):
            raise InputError(f"positions = {self.positions!r}: take visited or all")
        if self.positions == "all" and self.runs_target:
            raise InputError(
                "positions = all works only on replayed texts: leave out live, mcsd+ and the column target_prob"
            )

    @property
    def runs_target(self) -> bool:
        """True if the target verifies every tree, because that is wanted or because replay cannot give the rows."""
        return self.live or not self.trees.exact or any(COLUMNS[name] for name in self.columns)

    @property
    def nodes(self) -> int:
        """Drafted nodes of a tree, one per row."""
        return self.K * self.levels if self.policy == "mcsd+" else self.K + (self.levels - 1) * self.K**2

    @property
    def trees(self) -> Policy:
        """Policy whose trees are harvested."""
        return POLICIES[self.policy](self.K, self.levels, self.M)

    def room(self, positions: int) -> int:
        """Return the number of tokens that a conversation may have before its answer; room is left for the last
        tree."""
        return positions - self.max_new_tokens - self.levels - 1
