"""A target and a draft that are tables of logits by the last two tokens: thousands of rows cost next to nothing, and
the law of the text is known exactly. They stand where language models do in `generate`."""

from types import SimpleNamespace

import torch
from torch import Tensor

from c2t.caches.ragged import SlotLogits
from c2t.models.drafts.language_model import DraftLM
from c2t.models.drafts.session import DraftSession
from c2t.models.target.target import Target, Verified
from c2t.protocols import NextTokenDistributions
from c2t.tree import Tree

VOCABULARY = 8


def tables(noise: float = 1.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits (before last, last, next) of a target and of a draft that often agrees with it."""
    generator = torch.Generator().manual_seed(seed)
    target, other = (torch.randn(3 * [VOCABULARY], generator=generator, dtype=torch.float64) for _ in range(2))
    return 1.5 * target, 1.5 * target + noise * other


class State:
    """What both keep of a generation: each row's last two committed tokens, the root being the second of them."""

    def __init__(self, table: Tensor):
        self.table = table
        self.cache = SimpleNamespace(lengths=None)

    def after(self, tree: Tree, slots: Tensor) -> Tensor:
        """Logits after these slots."""
        parent = tree.parent.gather(1, slots)
        before = torch.where(parent < 0, self.before[:, None], tree.token.gather(1, parent.clamp(min=0)))
        return self.table[before, tree.token.gather(1, slots)]


class MarkovTarget(Target):
    def __init__(self, table: Tensor):
        self.table = table
        self.config = SimpleNamespace(vocab_size=len(table))

    device = torch.device("cpu")
    eos: frozenset[int] = frozenset()

    def session(self) -> "TargetState":
        return TargetState(self.table)


class TargetState(State):
    @property
    def lengths(self) -> Tensor:
        return self.cache.lengths

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Verified:
        last = tokens.gather(1, torch.stack([lengths - 2, lengths - 1], 1))
        self.before, self.cache.lengths = last[:, 1], lengths
        return Verified(SlotLogits.of(self.table[last[:, 0], last[:, 1]][:, None]), torch.zeros(*tokens.shape, 1))

    def verify(self, tree: Tree) -> Verified:
        self.tree = tree
        logits = self.after(tree, torch.arange(tree.size).expand(len(tree.token), -1))
        return Verified(SlotLogits.of(logits), torch.zeros(*tree.token.shape, 1))

    def peek(self, token: Tensor) -> Tensor:
        return self.verify(Tree.root(token)).logits.values

    def commit(self, slots: Tensor, count: Tensor) -> None:
        last = slots.gather(1, count[:, None] - 1)
        self.before = self.tree.token.gather(1, last)[:, 0]
        self.cache.lengths = self.cache.lengths + count

    def select(self, rows: Tensor) -> None:
        self.before, self.cache.lengths = self.before[rows], self.cache.lengths[rows]


class MarkovDraft(DraftLM):
    def __init__(self, table: Tensor):
        self.table = table

    def session(self) -> "DraftState":
        return DraftState(self.table)


@DraftSession.register
class DraftState(State):
    passes: Tensor | None = None

    def observe(self, tokens: Tensor, features: Tensor, count: Tensor) -> None:
        self.before = tokens.gather(1, count[:, None] - 1)[:, 0]
        self.passes = torch.zeros_like(count)

    def expand(self, tree: Tree, slots: Tensor) -> NextTokenDistributions:
        self.passes = self.passes + (slots >= 0).any(1)
        return NextTokenDistributions(self.after(tree, slots.clamp(min=0)))

    def refuse_nan(self) -> None: ...

    def join(self, other) -> None: ...

    def select(self, rows: Tensor) -> None:
        self.before = self.before[rows]
