"""A draft under constraints: its distributions lack what may not follow, before a policy ranks them.

Masks come last, after n-grams and noise, which could raise a forbidden token again. A distribution without any allowed
token becomes uniform: its candidates are improbable, and the target accepts none of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.caches.ragged import whole
from c2t.grammars.constraints import Constraints, allowed, paths_to
from c2t.kernels import masks as kernel
from c2t.protocols import Grown, NextTokenDistributions, Root, Session, grow_tree_of
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree


def masked(draft: Session, verifier: Any) -> Session:
    """Return the session with the constraints of the verifier's rows in its distributions; unchanged if no row has one
    and none can join. verifier: a `c2t.decoding.Verifier`."""
    constraints = getattr(verifier, "constraints", None)
    return draft if constraints is None else MaskedSession(draft, lambda: verifier.constraints)


class MaskedSession(WrappedSession):
    """Session of the inner draft, whose distributions lack what the rows' constraints forbid.

    constraints(): returns those of the current round's rows.
    """

    def __init__(self, draft: Session, constraints: Callable[[], Constraints]):
        super().__init__(draft)
        self.constraints = constraints

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows, constraints = self.draft.expand(tree, slots), self.constraints()
        return with_masks(rows, tree, slots, constraints) if constraints else rows

    def grow_tree(self, plan: Any, root: Root, **inputs: Any) -> Grown | None:
        """See `c2t.models.drafts.session.DraftSession.grow_tree`. Nothing is drafted where as many tokens must
        follow as it has levels: they join the tree later."""
        if constraints := self.constraints():
            inputs["ask_after"] = constraints.ask_draftable
            if all(len(constraints.forced(row, ())) >= plan.levels for row in range(len(root.token))):
                return Grown(Tree.root(root.token), ())
        return grow_tree_of(self.draft, plan, root, **inputs)


def with_masks(
    rows: NextTokenDistributions, tree: Tree, slots: Int[Tensor, "B F"], constraints: Constraints
) -> NextTokenDistributions:
    """Return a draft's distributions after these slots without the tokens that may not follow, in place on a CPU.

    Nothing may have been computed from `rows` before.
    """
    real, vocabulary = rows.rows or whole(*slots.shape, slots.device), rows.vocabulary
    texts = real.row.tolist()
    paths = paths_to(tree, texts, real.take(slots).tolist())
    masks = [constraints.draftable(row, path) for row, path in zip(texts, paths, strict=True)]
    if kernel.serves(rows.drafted):
        ids, oov_ids = (vocabulary.tokens, vocabulary.oov_ids) if vocabulary else (None, None)
        kernel.forbid(rows.drafted, ids, oov_ids, real.row, masks)
        return rows
    logits = rows.drafted.flatten(0, -2)
    if vocabulary is None:
        possible = allowed(masks, logits.shape[1], logits.device)
        is_token = torch.ones_like(possible)
    else:
        ids = vocabulary.tokens.expand(len(logits), -1)
        ids = ids if vocabulary.oov_ids is None else torch.cat([ids, vocabulary.oov_ids[real.row]], 1)
        is_token = ids >= 0
        possible = allowed(masks, vocabulary.size, logits.device).gather(1, ids.clamp(min=0)) & is_token
    constrained = torch.tensor([mask is not None for mask in masks], dtype=torch.bool, device=logits.device)[:, None]
    left = logits.masked_fill(constrained & ~possible, float("-inf"))
    empty = constrained & (left == float("-inf")).all(1, keepdim=True)
    left = left.masked_fill(empty & is_token, 0.0).view(rows.drafted.shape)
    return rows.with_logits(left, rows.rows)
