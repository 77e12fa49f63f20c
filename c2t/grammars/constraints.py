"""The constraints of a batch's rows."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.grammars.row_constraint import Path, RowConstraint
from c2t.kernels.masks import Answer, Mask
from c2t.tree import Tree


class Constraints:
    """One `RowConstraint` a row, None for a row without one.

    ahead: tokens after each row's root that a cheaper form of the target has committed for now (`look_ahead`).
    """

    def __init__(self, rows: Sequence[RowConstraint | None]):
        self.rows = list(rows)
        self.ahead: list[Path] | None = None

    def __bool__(self) -> bool:
        """Return True if any row is constrained."""
        return any(row is not None for row in self.rows)

    def draftable(self, row: int, path: Path) -> Mask | None:
        """Return the tokens that may be drafted after a path of this row; None for a row without a constraint."""
        constraint = self.rows[row]
        if constraint is None:
            return None
        mask = constraint.draftable(self._whole(row, path)) if constraint.may_draft else None
        return constraint.nothing if mask is None else mask

    def ask_draftable(self, row: int, path: Path, tokens: Path) -> Answer:
        """Return which of these tokens may be drafted after a path of this row. `draftable` without them, where it
        takes a mask, and where one token must follow, whose probability is 1 by a mask."""
        constraint, whole = self.rows[row], self._whole(row, path)
        asked = tokens and constraint is not None and constraint.may_draft and constraint.guessed(whole, tokens) is None
        allowed = constraint.allows(whole, tokens) if asked else None
        return self.draftable(row, path) if allowed is None else allowed

    def follows(self, row: int, path: Path, token: int) -> bool:
        """Return True if this token may be drafted after a path of this row, which has a constraint."""
        constraint, whole = self.rows[row], self._whole(row, path)
        if not constraint.may_draft:
            return False
        only = constraint.guessed(whole)
        return constraint.follows(whole, token) if only is None else token == only

    def required(self, row: int, path: Path) -> Mask | None:
        """Return the tokens that the target may choose after a path of its own choices; None for all. Raises InputError
        where there are none."""
        constraint = self.rows[row]
        if constraint is None:
            return None
        if self.ahead is None:
            return constraint.required(path)
        mask = constraint.mask(self.ahead[row] + path)
        return None if mask is None or mask.empty else mask  # the target itself may not come to this dead end

    def ask_required(self, row: int, path: Path, tokens: Path) -> Answer:
        """Return whether the target may choose this token after a path of its own choices, or the only one that it
        may. It must have been asked for all better ones before. `required` without a token, and where it takes a
        mask."""
        constraint, whole = self.rows[row], self._whole(row, path)
        if constraint is None or not tokens:
            return self.required(row, path)
        may = constraint.may_choose(whole, *tokens)
        only = constraint.only(whole)
        return only if only is not None else self.required(row, path) if may is None else [may]

    def forced(self, row: int, path: Path) -> Path:
        """Return the tokens that must follow a path of this row, as a draft may guess them."""
        constraint = self.rows[row]
        return () if constraint is None or not constraint.may_draft else constraint.guessed_run(self._whole(row, path))

    def masked(self, logits: Float[Tensor, "b V"], rows: Sequence[int], paths: Sequence[Path]) -> Float[Tensor, "b V"]:
        """Return the target's logits after these paths, -inf for what it may not choose."""
        masks = [self.required(row, path) for row, path in zip(rows, paths, strict=True)]
        return logits.masked_fill(~allowed(masks, logits.shape[1], logits.device), float("-inf"))

    def advance(self, tokens: Sequence[Sequence[int]]) -> None:
        """Commit each row's tokens of a round."""
        if self.ahead is not None:
            self.ahead = [(*path, *new) for path, new in zip(self.ahead, tokens, strict=True)]
            return
        for row, new in zip(self.rows, tokens, strict=True):
            if row is not None:
                row.advance(new)

    def look_ahead(self) -> None:
        """Let tokens that are committed from now on be rolled back by `look_back`."""
        self.ahead = [()] * len(self.rows)

    def look_back(self) -> None:
        """Discard the tokens that were committed since `look_ahead`."""
        self.ahead = None

    def of(self, rows: Int[Tensor, " b"] | slice) -> "Constraints":
        """Return the constraints of these rows."""
        chosen = range(len(self.rows))[rows] if isinstance(rows, slice) else rows.tolist()
        view = Constraints([self.rows[row] for row in chosen])
        view.ahead = None if self.ahead is None else [self.ahead[row] for row in chosen]
        return view

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.rows = [self.rows[row] for row in rows.tolist()]

    def join(self, other: "Constraints") -> None:
        """Append the rows of another batch."""
        self.rows = self.rows + other.rows

    @property
    def seconds(self) -> float:
        """Time spent in matchers so far."""
        return sum(row.seconds for row in self.rows if row is not None)

    def _whole(self, row: int, path: Path) -> Path:
        return path if self.ahead is None else self.ahead[row] + path


def allowed(masks: Sequence[Mask | None], vocabulary: int, device: torch.device) -> Bool[Tensor, "b V"]:
    """Return which tokens these masks allow: all where there is none."""
    rows = torch.ones(len(masks), vocabulary, dtype=torch.bool, device=device)
    for row, mask in zip(rows, masks, strict=True):
        if mask is not None:
            row.copy_(mask.flags())
    return rows


def paths_to(tree: Tree, rows: Sequence[int], slots: Sequence[int]) -> list[Path]:
    """Return the tokens after the root on the way to a slot of each of these rows."""
    tokens, parents = tree.token.tolist(), tree.parent.tolist()

    def path(row: int, slot: int) -> Path:
        along = []
        while slot > 0:
            along.append(tokens[row][slot])
            slot = parents[row][slot]
        return tuple(reversed(along))

    return [path(row, slot) for row, slot in zip(rows, slots, strict=True)]
