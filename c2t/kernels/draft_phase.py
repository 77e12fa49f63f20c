"""A round's fused draft phase: a layered policy on an EAGLE head on a CPU.

Level by level in Python (`c2t.policies.growth`, `c2t.policies.eagle2`) a policy makes a dozen calls per level, with
cold processor caches. In a round of four levels they took 2 ms of 18 ms. The fused phase calls the same functions in C.
So the trees are the same, except for candidates within an ulp of the threshold, or with ties between rows.
"""

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.kernels import budget, ngrams, oov_tokens
from c2t.kernels.budget import RoundModel
from c2t.kernels.decoder_layers import PackedLayers, PackedMatrix, PackedNorm, PackedReader
from c2t.kernels.layer_buffers import LayerBuffers
from c2t.kernels.level_plan import LevelPlan
from c2t.kernels.masks import AskAfter, asked
from c2t.kernels.native import kernels, structs
from c2t.kernels.network import COLUMNS
from c2t.kernels.nodes import Blocks
from c2t.kernels.noise import Noise
from c2t.kernels.pointer import pointer, pointers, weights

_WHOLE, _REAL, _FLAG, _BYTE = torch.int64, torch.float32, torch.bool, torch.uint8
MOST = 10_000  # candidates of a level at most
UNKNOWN, NO_MEMORY, NAN = -1, -2, -3  # error codes of the C function, in place of a size


class ResidualInput(IntEnum):
    """The residual input of a head's first layer.

    JOINED: token and state, joined by fc (EAGLE-1/2). STATE: the state (EAGLE-3), whose queries, keys and values read
    token and state. NORMED: the normalised state.
    """

    JOINED, STATE, NORMED = range(3)


class HeadLayers(NamedTuple):
    """A head without its LM head: the reader of token and state, the residual's input, the layers, the embeddings.

    norm: of the outputs; None for none. normed: True if the normalised outputs are also the states, and not only the LM
    head's inputs.
    """

    reader: PackedReader
    base: ResidualInput
    layers: PackedLayers
    table: Float[Tensor, "V H"]
    norm: PackedNorm | None = None
    normed: bool = False


class PhaseHead(NamedTuple):
    """Parts of a head. tokens: those of the LM head, in ascending order (None: all). all_rows: the LM head of all
    tokens, for out-of-vocabulary tokens of texts (None: there are none)."""

    layers: HeadLayers
    lm_head: PackedMatrix
    tokens: Int[Tensor, " v"] | None
    all_rows: Float[Tensor, "V H"] | None


class RootStates(NamedTuple):
    """Roots of B trees: root tokens, the draft's states after them, and the lengths of the texts before them.

    Their keys and values are in the first slots of `buffers`. Room for those of the trees follows
    (`DraftPhase.entries`).

    text_slots: slots of the longest text. step: slots of a row in all heads. turns: cosines and sines of all positions.
    oov_ids: tokens of each text that are not in the head's vocabulary, -1 for none.
    """

    root: Int[Tensor, " B"]
    hidden: Float[Tensor, "B H"]
    lengths: Int[Tensor, " B"]
    buffers: LayerBuffers
    text_slots: int
    step: int
    turns: tuple[Float[Tensor, "P h"], Float[Tensor, "P h"]]
    oov_ids: Int[Tensor, "B E"]


class NgramInput(NamedTuple):
    """N-grams to mix into the draft; see `c2t.kernels.ngrams`."""

    text: Int[Tensor, "B L"]
    lengths: Int[Tensor, " B"]
    prior: ngrams.Prior


class BudgetInput(NamedTuple):
    """Costs of a round, by which a budget decides after every level (`c2t.kernels.budget`).

    start: seconds of a round with trees, without its forwards. model(drafted, width): returns the costs for up to
    `drafted` slots in all and `width` slots per level. most: limit on the nodes to verify, None for no limit.
    row_weights: weight of a token in each row.
    """

    start: float
    model: Callable[[int, int], RoundModel]
    most: int | None
    row_weights: Sequence[float]


class GrownColumns(NamedTuple):
    """The trees' columns. capped: for each row, the nodes that only a limit excluded. passes: its draft forwards.

    slots: the expanded slots of each level, by their numbers at that time; -1 pads rows that have fewer.
    """

    blocks: Blocks
    capped: Int[Tensor, " B"]
    passes: Int[Tensor, " B"]
    slots: Int[Tensor, "L B F"]


def serves(head: PhaseHead, plan: LevelPlan) -> bool:
    """Return True if the fused phase supports this head and plan.

    It needs a compiler, an LM head of whole panels, and matrices and a classifier in the kernels' form. The plan must
    have the same number of children for every node, and at most MOST candidates per level.
    """
    whole = head.lm_head.outputs == head.lm_head.struct.outputs
    named = head.all_rows is None or oov_tokens.serves(head.all_rows)
    read = plan.network is None or plan.network.in_c is not None
    fits = plan.branching is None and plan.width * plan.K <= MOST
    return kernels() is not None and whole and named and read and fits


class DraftPhase:
    """The fused phase of a head and a plan, for one generation at a time; it reuses its memory from round to round."""

    def __init__(self, head: PhaseHead, plan: LevelPlan):
        self.head, self.plan = head, plan
        self.entries = plan.width * (plan.levels - 1)  # slots of the cache that a row's tree takes
        self._room = torch.empty(0, dtype=_BYTE, device="cpu")
        (reader, base, layers, table, norm, normed), lm_head, tokens, all_rows = head
        assert lm_head.struct.inputs == table.shape[1]
        self._plan, (at, is_bf16) = _plan(plan), weights(table)
        self._head = structs.head(
            *(reader.struct, lm_head.struct, norm and pointer(norm.weight, _REAL), base, normed),
            *(layers.structs, len(layers)),
            *(at, len(table), is_bf16),
            *(None if tokens is None else pointer(tokens, _WHOLE), lm_head.outputs),
            *(table.shape[1], layers.width, kernels().lanes()),
            *((None, 0) if all_rows is None else weights(all_rows)),
        )

    def __call__(
        self,
        text: RootStates,
        ngram_input: NgramInput | None,
        target_noise: Noise | None,
        ask_after: AskAfter | None,
        budget_input: BudgetInput | None,
        refuse_nan: Callable[[], None],
    ) -> GrownColumns:
        """Return the trees; with a budget, only the nodes that it selects. target_noise: Gumbel noise of the target.
        ask_after: of a constraint.

        refuse_nan() is called, and must raise, if a distribution of the draft is NaN. IndexError for a token without an
        embedding, and for positions beyond `turns`.
        """
        root, hidden, lengths, buffers, text_slots, step, (cosine, sine), oov_ids = text
        root, hidden, lengths = root.contiguous(), hidden.contiguous(), lengths.contiguous()
        assert buffers[0].dtype == torch.float32
        assert buffers.alike or not self.entries
        # A fork's buffers have gaps until it appends.
        keys = ctypes.addressof(buffers.addresses) if self.entries else None
        strides, count, threads = buffers[0].stride(), len(root), torch.get_num_threads()
        of_text = structs.text(
            *(count, *pointers((root, lengths, hidden), (_WHOLE, _WHOLE, _REAL)), keys),
            *(strides[0], strides[-3], step, text_slots, pointer(cosine, _REAL), pointer(sine, _REAL), len(cosine)),
            *(pointer(oov_ids, _WHOLE), oov_ids.shape[1]),
        )
        self._head.table, self._head.is_bf16 = weights(self.head.layers.table)
        needed = kernels().room_of(self._plan, self._head, of_text, threads)
        if needed > len(self._room):
            self._room = self._room.new_empty(2 * needed)
        size, reranked = self._most(), self.plan.reranked
        size = min(size, reranked) if reranked and budget_input is None else size
        kinds = (4, _WHOLE), (4, _REAL), (1, _REAL), (1, _FLAG)
        whole, real, score, alive = (root.new_empty(many * count * size, dtype=kind) for many, kind in kinds)
        capped, passes = root.new_empty(2, count)
        slots = root.new_full((self.plan.levels, count, self.plan.width), -1)
        columns = self._room, whole, real, score, alive, capped, passes, slots
        made = pointers(columns, (_BYTE, _WHOLE, _REAL, _REAL, _FLAG, _WHOLE, _WHOLE, _WHOLE))
        noisy = [column.contiguous() for column in target_noise or ()]  # referenced until the call is over
        noise = structs.noise(*(pointers(noisy, (_REAL, _WHOLE, _WHOLE)) if noisy else ()))
        with asked(ask_after) as constraint:
            inputs = _ngrams(ngram_input), noise, constraint, self._budget_input(budget_input, count)
            n = kernels().draft_phase(self._plan, self._head, of_text, *inputs, *made, threads)
        if n == UNKNOWN:
            raise IndexError(
                f"a token or a position beyond the {len(self.head.layers.table)} and {len(cosine)} known ones"
            )
        if n == NO_MEMORY:
            raise MemoryError("no memory to count what follows in a text")
        if n == NAN:
            refuse_nan()
        whole, real = (column[: 4 * count * n].view(4, count, n) for column in (whole, real))
        score, alive = (column[: count * n].view(count, n) for column in (score, alive))
        return GrownColumns(Blocks(whole, real, score, alive), capped, passes, slots[: int(passes.max())])

    def _budget_input(self, budget_input: BudgetInput | None, rows: int) -> ctypes.Structure:
        if budget_input is None:
            return structs.budget_input()
        start, model, most, row_weights = budget_input
        arrays, row_weights = model(rows * self._most(), rows * self.plan.width), (ctypes.c_double * rows)(*row_weights)
        most = budget.UNBOUNDED if most is None else most
        struct = structs.budget_input(ctypes.pointer(arrays.in_c), ctypes.addressof(row_weights), start, most)
        struct.arrays = arrays, row_weights  # which it points into
        return struct

    def _most(self) -> int:
        """Return the maximum number of nodes of a tree before reranking."""
        plan = self.plan
        return 1 + plan.levels * plan.width * (plan.K if plan.reranked else 1)


def _plan(plan: LevelPlan) -> ctypes.Structure:
    entropy = -1 if plan.M is None else plan.M
    threshold, most, strict = plan.limits
    numbers = plan.K, plan.width, plan.levels, plan.reranked or 0, most, strict, entropy
    if plan.network is None:
        return structs.plan(*numbers, None, None, threshold)
    read = [COLUMNS.index(feature.name) for feature in plan.network.features]
    inputs = (ctypes.c_int64 * len(read))(*read)
    struct = structs.plan(*numbers, ctypes.pointer(plan.network.in_c), ctypes.addressof(inputs), threshold)
    struct.read = inputs  # which it points into
    return struct


def _ngrams(ngram_input: NgramInput | None) -> ctypes.Structure:
    if ngram_input is None:
        return structs.ngrams()
    text, lengths, prior = ngram_input
    at, given = pointer(text, _WHOLE, rows=True), pointer(lengths, _WHOLE)
    return structs.ngrams(at, text.stride(0), text.shape[1], given, ctypes.pointer(prior.in_c))
