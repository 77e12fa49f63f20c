"""A draft phase of fixed shapes: a layered policy on an EAGLE-1/2 head, one graph for each level (C2T, Algorithm 1).

Every level drafts from `width` slots, dead ones included, in columns, keys and values that exist already. While levels
are drafted, the only wait on a CUDA device is for one flag: whether the level before the one just begun had a survivor,
which is usually known by then. The trees' sizes are read once a round.

    read     the committed tokens' keys and values, and the root's hidden state
    level 0  the root's children             rank -> select
    level i  children of level i - 1         head -> rank -> select
    finish   alive slots first, or EAGLE-2's reranking
"""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.caches.padded import StaticKVCache
from c2t.cuda_graphs.candidates import candidates
from c2t.cuda_graphs.graph import Flags, Graph
from c2t.errors import InputError
from c2t.kernels.compact import LONGEST
from c2t.kernels.level_attention import WORD, LevelMask, ancestor_bits, level_attention
from c2t.kernels.nodes import Blocks
from c2t.kernels.rows import TopK, rank
from c2t.kernels.select import select
from c2t.kernels.static_tree import StaticTree
from c2t.models.drafts.head_draft import EagleSession
from c2t.models.drafts.session import DraftSession, refuse_nan
from c2t.models.target.attention import has_blocks
from c2t.policies.eagle2 import rerank
from c2t.protocols import Policy, Root
from c2t.tree import COLUMNS, Tree


class StaticDraft:
    """DraftModel for `StaticPolicy`, for at most `rows` rows and texts of at most `capacity` tokens. All generations
    use the same memory, so only one runs at a time. InputError for what it `refuses`."""

    def __init__(self, draft: Any, policy: Any, rows: int, capacity: int):
        if why := self.refuses(draft, policy):
            raise InputError(f"CUDA graphs draft {why}")
        self.draft, self.plan, self.rows, self.capacity = draft, policy.level_plan, rows, capacity
        self.phase: DraftGraph | None = None

    @staticmethod
    def refuses(draft: Any, policy: Any) -> str | None:
        """Return what a draft phase of fixed shapes is limited to, where a draft or policy has none; else None."""
        plan = getattr(policy, "level_plan", None)
        if plan is None:
            return (
                "eagle2 (not its ablations), chain, threshold, entropy without leaf_above, and "
                "c2t with a classifier of two layers on a node's columns"
            )
        if not draft.has_graphs or draft.fused is None:
            return "with EAGLE-1/2 heads of plain or scaled positions, without n-grams"
        if next(draft.head.parameters()).is_cuda and not has_blocks(draft.head.config):
            return "with heads of 16, 32, 64, 128 or 256 dimensions"
        return f"fewer than {LONGEST} levels" if plan.levels >= LONGEST else None

    def session(self) -> "StaticSession":
        """Return a new session, for one generation."""
        return StaticSession(self)

    @torch.inference_mode()
    def record(self) -> None:
        """Record all graphs, once a prompt was read: a text's first rounds may need few of them."""
        if self.phase is None:  # the text ended with its first token
            return
        self.phase.count.zero_()  # nothing is read
        for graph in (self.phase.read, *self.phase.levels, self.phase.finish):
            graph()


class StaticPolicy:
    """A policy with a level plan, all of which the draft runs by itself."""

    def __init__(self, policy: Policy):
        self.proposal, self.exact, self.levels = policy.proposal, policy.exact, policy.levels

    def __call__(self, draft: "StaticSession", root: Root) -> Tree:
        return draft.grow(root)


@DraftSession.register  # it has a session's methods, in fixed shapes
class StaticSession:
    """One generation, whose prompts are read by an ordinary session. passes: draft forwards, counted as in
    `DraftSession`."""

    takes_noise = False  # a recorded graph adds none
    passes: Int[Tensor, " B"] | None = None

    def __init__(self, owner: StaticDraft):
        self.owner = owner
        self.reader: EagleSession | None = owner.draft.session()

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`."""
        if self.reader is None:
            self.owner.phase.read_committed(tokens[:, 1:], features, count)
            return
        self.reader.observe(tokens, features, count)
        if self.owner.phase is None:
            self.owner.phase = DraftGraph(self.owner, self.reader)
        self.owner.phase.adopt(self.reader)
        self.reader = None

    def grow(self, root: Root) -> Tree:
        """Return the trees of this round."""
        tree, self.passes = self.owner.phase.grow(root.token)
        return tree

    def refuse_nan(self) -> None:
        """See `DraftSession.refuse_nan`."""
        broken = self.owner.phase.is_broken
        if broken:
            self.owner.phase = None  # idle rows would keep the NaN, and the next generation would count it
        refuse_nan(broken)

    def join(self, other: Any) -> None:
        """Raise InputError: graphs have a fixed number of rows."""
        raise InputError("CUDA graphs decode fixed batches only: no row can join one")

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        (self.reader or self.owner.phase).cache.select(rows)


class DraftGraph:
    """Memory of a draft phase, and the graphs that work in it.

    Slot 0 of a tree is the root, whose key and value belong to the prefix; level i has the `width` slots after those of
    the levels before it.
    """

    def __init__(self, owner: StaticDraft, like: EagleSession):
        plan, rows = owner.plan, owner.rows
        self.plan, self.head, self.draft = plan, owner.draft.fused, owner.draft
        ends = [1 + plan.width * level for level in range(plan.levels + 1)]
        self.slots = [range(1), *(range(a, b) for a, b in pairwise(ends))]  # level i's at [i + 1]
        self.most_committed = plan.levels + 1  # tokens that a round may commit
        self.cache = StaticKVCache(owner.draft.head.num_layers, owner.capacity, max(ends[-1], self.most_committed))
        self.cache.allocate(like.cache, rows)
        self.head.reach(owner.capacity + plan.levels + 2)
        self.rotations = self.head.cos, self.head.sin  # graphs read these, also when the head has longer ones
        hidden = like.hidden.new_zeros
        self.tokens, self.count, self.root = (
            hidden(shape, dtype=torch.long) for shape in ((rows, self.most_committed), rows, rows)
        )
        self.features = hidden(rows, self.most_committed, like.hidden.shape[2])
        self.hidden = hidden(rows, ends[-1], like.hidden.shape[2])
        exact = torch.float64 if like.hidden.dtype == torch.float64 else torch.float32
        self.tree = StaticTree.rooted(self.root, ends[-1], exact)
        self.broken, self.is_broken = hidden((), dtype=torch.bool), False
        self.flags = Flags(plan.levels, hidden(()).device)
        self.drafted: list[TopK] = [None] * plan.levels
        self._constants()
        graph = partial(Graph, device=self.root.device)
        self.read = graph(self._read, state=[self.cache.lengths])
        counters = [self.tree.sizes, self.tree.capped, self.broken]
        self.levels = [graph(partial(self._level, level), state=counters) for level in range(plan.levels)]
        self.finish = graph(self._finish)

    def _constants(self) -> None:
        """Make the parts of the masks that are the same in all rounds."""
        rows, device = len(self.root), self.root.device
        chain = torch.arange(-1, self.most_committed - 1, device=device).expand(rows, -1)
        self.chain = ancestor_bits(chain)
        bits = self.tree.bits.shape[2]
        self.not_root = torch.full((bits,), -1, dtype=torch.int32, device=device)
        self.not_root[0] = -2

    def adopt(self, reader: EagleSession) -> None:
        """Take over the state of an ordinary session that has read the prompts."""
        self.cache.adopt(reader.cache)
        self.hidden[: len(reader.hidden), 0] = reader.hidden[:, 0]

    def read_committed(
        self, tokens: Int[Tensor, "b m"], features: Float[Tensor, "b m H"], count: Int[Tensor, " b"]
    ) -> None:
        """Read the tokens that a round has committed, with their features; count[r] of row r are real."""
        rows, new = tokens.shape
        self.tokens[:rows, :new], self.features[:rows, :new] = tokens, features
        self.count.zero_()  # rows that have left read nothing
        self.count[:rows] = count
        self.read()

    def grow(self, root: Int[Tensor, " b"]) -> tuple[Tree, Int[Tensor, " b"]]:
        """Draft the trees under these roots; return them, and the number of draft forwards that each row took part
        in."""
        rows = len(root)
        self.root[:rows] = root
        for level, draft in enumerate(self.levels):
            draft()
            self.flags.send(level)
            # EAGLE-2 drafts all levels, whatever survives.
            if level and self.plan.reranked is None and not self.flags.received(level - 1):
                break
        self.finish()
        broken, *sizes = self.ended.tolist()  # waits for the device: a tree's size decides which graph verifies it
        self.is_broken = bool(broken)
        size = self.grown.size if self.plan.reranked else max(sizes[:rows])
        # Copies: the next round works in the same memory.
        blocks = Blocks(*(block[..., :rows, :size].clone() for block in self.grown.blocks))
        return Tree.of(blocks, capped=self.tree.capped[:rows].clone()), self.passes[:rows].clone()

    def _read(self) -> None:
        steps = torch.arange(self.most_committed, device=self.count.device).expand_as(self.tokens)
        hidden = self._forward(
            self.features, self.tokens, steps + self.cache.lengths[:, None], self.chain, self.count, 0
        )
        last = (self.count - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[2])
        self.hidden[:, :1] = hidden.gather(1, last)
        self.cache.keep(steps, self.count)

    def _level(self, level: int) -> None:
        frontier, slots = self.slots[level : level + 2]
        if level:
            here = slice(frontier.start, frontier.stop)
            parent = self.tree.parent[:, here, None].expand(-1, -1, self.hidden.shape[2])
            positions = self.cache.lengths[:, None] + self.tree.depth[:, here]
            bits = self.tree.bits[:, here, : -(-frontier.stop // WORD)] & self.not_root[: -(-frontier.stop // WORD)]
            alive = self.tree.alive[:, here].sum(1)
            features, tokens = self.hidden.gather(1, parent), self.tree.token[:, here]
            self.hidden[:, here] = self._forward(features, tokens, positions, bits, alive, frontier.start)
        else:
            here = slice(0, 1)
            self.tree.restart(self.root)
            self.broken.zero_()
        logits = self.draft.lm_head(self.draft.head.readable(self.hidden[:, here]))
        drafted = rank(logits, self.plan.K, self.plan.M)
        if self.draft.vocabulary is not None:
            drafted = drafted._replace(token=self.draft.vocabulary.tokens[drafted.token])
        self.broken |= drafted.log_norm.isnan().any()
        if self.plan.branching is not None:
            ranks = torch.arange(self.plan.K, device=logits.device)
            beyond = ranks >= self.plan.branching(drafted.entropy)[..., None]
            drafted = drafted._replace(log_prob=drafted.log_prob.masked_fill(beyond, float("-inf")))
        self.drafted[level] = drafted
        select(self.tree, frontier, slots, drafted, self.plan.network, self.plan.limits)
        self.flags.device[level] = self.tree.alive[:, slots.start : slots.stop].any()

    def _forward(
        self,
        features: Float[Tensor, "B n D"],
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        bits: Int[Tensor, "B n w"],
        sizes: Int[Tensor, " B"],
        start: int,
    ) -> Float[Tensor, "B n H"]:
        """Run the head on tokens whose keys and values belong `start` slots after the prefixes; of row r the first
        sizes[r] are real."""
        mask = LevelMask(bits.contiguous(), self.cache.lengths.int(), sizes.int())
        end = start + tokens.shape[1]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.cache.pending = start
            return level_attention(query, *self.cache.update(key, value, layer), mask, end)

        return self.head(features, tokens, positions, attend)

    def _finish(self) -> None:
        """Put the trees' alive slots first; EAGLE-2 reranks instead."""
        tree = self.tree
        alive = tree.alive[:, 1:].unflatten(1, (self.plan.levels, self.plan.width)).any(2)
        self.passes = 1 + alive[:, :-1].sum(1)
        if self.plan.reranked is None:
            order = torch.sort(tree.alive, dim=1, descending=True, stable=True).indices
            self.grown = Tree(**{name: getattr(tree, name) for name in (*COLUMNS, "capped")}).select(order)
        else:
            self.grown = rerank(candidates(tree, self.slots, self.drafted), self.plan.reranked)
        self.ended = torch.cat([self.broken[None].long(), tree.sizes])
