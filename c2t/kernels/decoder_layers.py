"""Decoder layers of Llama and its relatives on a CPU, in C: sums in float32, on weights that stay in bf16 where they
are exactly that.

What it computes for a token does not depend on which other tokens are in the same forward, so a verified tree and plain
decoding give the same logits bit for bit. A matrix is stored in panels of 2 x `lanes` output columns, in which one pass
serves up to 14 rows, or 32 in the tiles of processors that have them (`python -m pipelines.bench forward`). The
twins in torch are transformers' decoder layers; `c2t.models.target.families` says where these keep their weights.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn

from c2t.kernels.layer_buffers import LayerBuffers
from c2t.kernels.native import kernels, structs
from c2t.kernels.pointer import pointer, pointers, weights

# Inputs after whose multiples a forward's cost steps up: one pass over a panel serves 6 with AVX2 and 14 with AVX-512,
# and 16 are the height of a tile (a GPU's, too).
STEPS = (6, 14, 16)
BLOCK = 64  # inputs in 8 bits that share a scale
GROUP = 32  # weights of an output in 4 bits that share a scale
SUPER = 256  # weights of an output whose groups have multiples of one scale
ZERO = 128  # a weight's byte that stands for 0
ROUNDED_ROWS = 4096  # rounded together, since float32 takes four times the memory


def edges(most: int) -> set[int]:
    """Return the numbers of inputs up to `most` on both sides of the steps in a forward's cost, on any machine."""
    multiples = (whole for step in STEPS for whole in range(step, most + 1, step))
    return {edge for whole in multiples for edge in (whole, whole + 1) if edge <= most}


def panel() -> int:
    """Return the output columns of a panel: every inner dimension of a layer must be a multiple of it."""
    return 2 * kernels().lanes()


class Kind(IntEnum):
    """How a matrix is stored and multiplied, see decoder_layers.c.

    BF16_STORED: weights in bf16, products in float32. BF16: weights in bf16 and inputs rounded to bf16, in products of
    two (AVX512-BF16). BF16_AMX: the same in products of 32. INT8: weights in 8 bits with a scale for each output, times
    inputs rounded to 8 bits with a scale for each BLOCK. INT4: weights in 4 bits with a scale and an offset for each
    GROUP, times the same inputs. INT4_K, INT8_GROUPS, INT8_K: a file's numbers as they are, see `Numbers`.
    """

    INT4, INT4_K, INT8_GROUPS, INT8_K, INT8, FP32, BF16_STORED, BF16, BF16_AMX = range(9)

    @property
    def inputs(self) -> int:
        """Return what a matrix' number of inputs must be a multiple of."""
        if self in (Kind.INT4_K, Kind.INT8_K):
            return SUPER
        return BLOCK if self < Kind.FP32 else {Kind.BF16: 2, Kind.BF16_AMX: 32}.get(self, 1)

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the numbers that a matrix is stored in."""
        if self == Kind.FP32:
            return torch.float32
        return torch.uint8 if self < Kind.FP32 else torch.bfloat16

    @property
    def together(self) -> int:
        """Return how many inputs of a product share a word."""
        return {Kind.INT8: 4, Kind.BF16: 2, Kind.BF16_AMX: 2}.get(self, 1)

    @classmethod
    def of(cls, weight: Float[Tensor, "O I"], rounded: bool = False, int4: bool = False) -> "Kind":
        """Return the kind of a matrix with these weights. Those in bf16 ask for products in bf16. rounded: INT8 where
        the processor and the shape allow it; int4: INT4 then."""
        if rounded and rounds(weight.shape[1]):
            return cls.INT4 if int4 else cls.INT8
        if weight.dtype == torch.bfloat16:
            fast = fastest_in_bf16()
            return fast if weight.shape[1] % fast.inputs == 0 else cls.BF16_STORED
        return cls.BF16_STORED if bool((weight.bfloat16() == weight).all()) else cls.FP32


def bf16_is_faster() -> bool:
    """Return True if this processor multiplies in bf16 faster than in float32."""
    return fastest_in_bf16() > Kind.BF16_STORED


def int8_is_fastest() -> bool:
    """Return True if INT8 is this processor's fastest kind: where it works at all, unless there is BF16_AMX, with which
    many rows are cheaper."""
    return Kind.INT8 in works() and Kind.BF16_AMX not in works()


def rounds(inputs: int) -> bool:
    """Return True if a matrix of so many inputs can be INT8 on this processor."""
    return inputs % Kind.INT8.inputs == 0 and Kind.INT8 in works()


def fastest_in_bf16() -> Kind:
    """Return how this processor multiplies bf16 weights fastest, by its make and its instructions. A measurement would
    differ now and then on a busy machine, and data made in one arithmetic are refused in another."""
    if Kind.BF16_AMX in works():
        return Kind.BF16_AMX
    return Kind.BF16 if Kind.BF16 in works() and kernels().dpbf16_is_faster() else Kind.BF16_STORED


def works() -> list[Kind]:
    """Return the kinds of matrices that the kernels have on this processor."""
    if kernels() is None:
        return [Kind.BF16_STORED]
    return [kind for kind in Kind if kind <= kernels().best_kind() and (kind > Kind.INT8 or kernels().has_int8())]


class PackedMatrix:
    """Linear layer in panels, with sums in float32. Takes any float dtype. kind: by default the weights' own."""

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None, kind: Kind | None = None):
        weight = weight.detach()
        self.kind = Kind.of(weight) if kind is None else kind
        self.outputs, inputs = weight.shape
        width = panel()
        padded = -(-self.outputs // width) * width
        more, self._scales = (0, 0, 0, padded - self.outputs), None
        if self.kind == Kind.INT4:
            self._panels = to_int4(nn.functional.pad(weight.float(), more), width)
        elif self.kind == Kind.INT8:
            rows, scales = to_int8(weight)
            rows, self._scales = nn.functional.pad(rows, more, value=ZERO), nn.functional.pad(scales, more[2:])
            self._panels = in_panels(rows, width, self.kind)
        else:
            rows = weight.bfloat16() if self.kind >= Kind.BF16_STORED else weight.float()
            self._panels = in_panels(nn.functional.pad(rows, more), width, self.kind)
        self._bias = None if bias is None else nn.functional.pad(bias.detach().float(), (0, padded - self.outputs))
        floats = (None if tensor is None else pointer(tensor, torch.float32) for tensor in (self._bias, self._scales))
        self.struct = structs.matrix(pointer(self._panels, self.kind.dtype), *floats, inputs, padded, self.kind)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and their scales, which a product reads whole."""
        return self._panels.nbytes + (0 if self._scales is None else self._scales.nbytes)

    def __call__(self, x: Float[Tensor, "*R I"]) -> Float[Tensor, "*R O"]:
        """Return x W' + b in float32."""
        x = x.float().contiguous()
        out = x.new_empty(*x.shape[:-1], self.struct.outputs)
        rows, room = x.numel() // self.struct.inputs, torch.empty_like(x)
        given, *made = pointers((x, room, out), [torch.float32] * 3)
        kernels().linear(self.struct, given, rows, *made, self.struct.outputs, torch.get_num_threads())
        return out if self.outputs == self.struct.outputs else out[..., : self.outputs]


class Numbers(NamedTuple):
    """A matrix in whole numbers, as a file has them.

    kind: INT4 has in `groups` the scale and the offset of each GROUP in fp16. INT4_K has in `first` two fp16 numbers d
    and m of each SUPER, and in `groups` two bytes of each GROUP: its scale is the one times d, its offset the other
    times -m. INT8_GROUPS has in `groups` the scale of each GROUP in fp16. INT8_K has in `first` an fp16 number of each
    SUPER, and the 16 bytes with a sign whose multiples of it are the scales of its groups. numbers: in 8 bits ZERO more
    than they are.
    """

    kind: Kind
    numbers: UInt8[Tensor, "O I"]
    first: tuple[Shaped[Tensor, "O s"], ...]
    groups: tuple[Shaped[Tensor, "O g"], ...]

    def panels(self, width: int) -> UInt8[Tensor, "P n"]:
        """Return the matrix in panels of `width` outputs, the last of which may be filled up with zeros."""
        made = []
        for begin in range(0, len(self.numbers), ROUNDED_ROWS // width * width):
            some = slice(begin, begin + ROUNDED_ROWS // width * width)
            part = self._replace(
                numbers=_whole(self.numbers[some], width),
                first=tuple(_whole(column[some], width) for column in self.first),
                groups=tuple(_whole(column[some], width) for column in self.groups),
            )
            made.append(part._panels(width))
        return torch.cat(made)

    def _panels(self, width: int) -> UInt8[Tensor, "P n"]:
        outer = SUPER if self.first else GROUP
        panels, blocks = len(self.numbers) // width, self.numbers.shape[1] // outer

        def columns(numbers: Tensor, count: int) -> UInt8[Tensor, "P b e n"]:
            """Return for each block `count` times a number of every column."""
            by_column = numbers.view(panels, width, blocks, count).permute(0, 2, 3, 1).contiguous()
            return by_column.view(torch.uint8)

        count = self.groups[0].shape[1] // blocks if self.groups else 1
        numbers = self.numbers.view(panels, 2, width // 2, blocks, count, -1, 4).permute(0, 3, 4, 5, 1, 2, 6)
        if self.kind in (Kind.INT4, Kind.INT4_K):
            numbers = numbers[:, :, :, :, 0] | numbers[:, :, :, :, 1] << 4
        by_group = torch.cat([*(columns(group, count) for group in self.groups), numbers.flatten(3)], 3)
        above = [columns(column, column.shape[1] // blocks).flatten(2) for column in self.first]
        return torch.cat([*above, by_group.flatten(2)], 2).flatten(1)


Stored = Callable[[Tensor], Numbers | None]  # finds the numbers of a weight, or of rows of one


def _whole(rows: Shaped[Tensor, "O n"], width: int) -> Shaped[Tensor, "o n"]:
    return nn.functional.pad(rows, (0, 0, 0, -len(rows) % width)).contiguous()


class NumbersMatrix(PackedMatrix):
    """A linear layer of one or several matrices in whole numbers, whose outputs follow each other. All but the last one
    have outputs in whole panels."""

    def __init__(self, parts: Sequence[Numbers], bias: Float[Tensor, " O"] | None = None):
        self.kind, width, inputs = parts[0].kind, panel(), parts[0].numbers.shape[1]
        sizes = [len(part.numbers) for part in parts]
        assert all(size % width == 0 for size in sizes[:-1])
        self.outputs, padded = sum(sizes), -(-sum(sizes) // width) * width
        self._parts = [part.panels(width) for part in parts]
        self._bias = None if bias is None else nn.functional.pad(bias.detach().float(), (0, padded - self.outputs))
        self._structs: list[ctypes.Structure] = []  # from the last one on
        for part, panels, begin in reversed(list(zip(parts, self._parts, accumulate(sizes, initial=0), strict=False))):
            its_bias = None if self._bias is None else pointer(self._bias[begin:], torch.float32)
            rest = ctypes.addressof(self._structs[-1]) if self._structs else None
            outputs = padded - begin
            self._structs.append(
                structs.matrix(
                    *(pointer(panels, torch.uint8), its_bias, None, inputs, outputs, part.kind, rest, len(panels))
                )
            )
        self.struct = self._structs[-1]

    @property
    def nbytes(self) -> int:
        """See `PackedMatrix.nbytes`."""
        return sum(panels.nbytes for panels in self._parts)


def in_panels(rows: Shaped[Tensor, "O I"], width: int, kind: Kind) -> Shaped[Tensor, "P ..."]:
    """Return a matrix in panels of `width` outputs, as this kind of matrix is stored."""
    inputs = rows.shape[1]
    if (together := kind.together) > 1:  # so many numbers of a column share a word
        return rows.view(-1, width, inputs // together, together).transpose(1, 2).contiguous()
    # BF16_STORED: the numbers of columns i and i + lanes share a word; FP32: one vector after the other
    order = (2, 1) if kind == Kind.BF16_STORED else (1, 2)
    return rows.view(-1, 2, width // 2, inputs).permute(0, 3, *order).contiguous()


def to_int8(weight: Float[Tensor, "O I"]) -> tuple[UInt8[Tensor, "O I"], Float[Tensor, " O"]]:
    """Return a matrix rounded to 8 bits, each number ZERO more than it is, and the scale of each row."""
    rows, scales = weight.new_empty(weight.shape, dtype=torch.uint8), weight.new_empty(len(weight), dtype=torch.float32)
    for begin in range(0, len(weight), ROUNDED_ROWS):
        some = slice(begin, begin + ROUNDED_ROWS)
        part = weight[some].float()
        scales[some] = part.abs().amax(1) / 127
        rows[some] = (part / scales[some].clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round() + ZERO
    return rows, scales


def to_int4(weight: Float[Tensor, "O I"], width: int) -> UInt8[Tensor, "P G n"]:
    """Return a matrix rounded to 4 bits, in panels of `width` outputs: for each GROUP of inputs the outputs' scales and
    the numbers that 0 stands for, in fp16, then the weights, two to a byte (see decoder_layers.c)."""
    made, room = [], torch.finfo(torch.half)
    for part in weight.view(-1, 2, width // 2, weight.shape[1] // GROUP, GROUP).split(max(1, ROUNDED_ROWS // width)):
        panels = part.float().transpose(2, 3)
        least, most = (edge.clamp(room.min, room.max) for edge in panels.aminmax(dim=-1))
        scale, least = ((most - least) / 15).half(), least.half()
        steps = (panels - least.float()[..., None]) / scale.float()[..., None]
        whole = steps.nan_to_num().round().clamp(0, 15)  # where all are equal: 0, so that they are their offset
        low, high = whole.to(torch.uint8).unflatten(-1, (-1, 4)).transpose(3, 4).flatten(3).unbind(1)
        header = [column.transpose(1, 2).flatten(2).contiguous().view(torch.uint8) for column in (scale, least)]
        made.append(torch.cat([*header, low | high << 4], -1))
    return torch.cat(made)


class PackedReader:
    """A matrix that reads a token's embedding and a state side by side: the fc of an EAGLE-1/2 head, or the projections
    of an EAGLE-3 head's first layer, for which both are normalised."""

    def __init__(self, matrix: PackedMatrix, norms: "tuple[PackedNorm, PackedNorm] | None" = None):
        self.matrix, self.norms = matrix, norms  # what the structure points to
        of_norms = [None, None] if norms is None else [pointer(norm.weight, torch.float32) for norm in norms]
        self.struct = structs.reader(matrix.struct, *of_norms, 0.0 if norms is None else norms[0].epsilon)

    @classmethod
    def of(cls, linear: nn.Linear, rounded: bool = False) -> "PackedReader":
        """Return the reader of an fc. rounded: see `Kind.of`."""
        return cls(PackedMatrix(linear.weight, linear.bias, Kind.of(linear.weight, rounded)))

    def __call__(
        self, table: Float[Tensor, "V H"], tokens: Int[Tensor, " R"], states: Float[Tensor, "R H"]
    ) -> Float[Tensor, "R O"]:
        """Return the outputs in float32. table: the embeddings, in bf16 or float32; IndexError for a token that has
        none."""
        tokens, states = tokens.contiguous(), states.float().contiguous()
        rows, struct = len(tokens), self.matrix.struct
        assert 2 * table.shape[1] == 2 * states.shape[1] == struct.inputs
        out, room = states.new_empty(rows, struct.outputs), states.new_empty(rows, struct.inputs)
        at, is_bf16 = weights(table)
        real = torch.float32
        given, made = pointers((tokens, states), (torch.int64, real)), pointers((room, out), (real, real))
        if kernels().read_both(self.struct, at, len(table), is_bf16, *given, rows, *made, torch.get_num_threads()):
            raise IndexError(f"a token that is not among the {len(table)} known ones")
        return out


class Sight(NamedTuple):
    """Slots of the cache that each of R tokens sees: prefix[r] ones, at most `longest`, from first[r] on, and those of
    the next m slots that the mask selects; at least one in all. Tokens of one text stand together, with the same first
    slot and prefix.

    windowed: the mask in layers with a window; of the prefix, whose slots are a text's first positions, they see the
    last ones. None where no layer has a window.
    """

    first: Int[Tensor, " R"]
    prefix: Int[Tensor, " R"]
    mask: Bool[Tensor, "R m"]
    longest: int
    windowed: Bool[Tensor, "R m"] | None = None


class PackedNorm:
    """A norm by the root of the mean square. offset: what is added to the weights."""

    def __init__(self, weight: Float[Tensor, " H"], epsilon: float, offset: float = 0.0):
        self.weight, self.epsilon = (weight.detach().float() + offset).contiguous(), epsilon

    def __call__(self, x: Float[Tensor, "*R H"]) -> Float[Tensor, "*R H"]:
        """Return the rows normalised; x is in float32."""
        x, width, threads = x.contiguous(), x.shape[-1], torch.get_num_threads()
        out = torch.empty_like(x)
        given, weight, made = pointers((x, self.weight, out), [torch.float32] * 3)
        kernels().rms_norm(given, weight, self.epsilon, x.numel() // width, width, made, threads)
        return out


class Weights(NamedTuple):
    """Weights of a linear map and, if it has one, its bias."""

    weight: Float[Tensor, "O I"]
    bias: Float[Tensor, " O"] | None = None


class LayerParts(NamedTuple):
    """Weights and numbers of a decoder layer.

    reading: queries, keys and values, one after the other, in one map or in several. Weights of norms are None where
    the layer has none: read_norm and norm are of what attention and the MLP read, out_norm and down_norm of what they
    add, query_norm and key_norm of each head's numbers, or of all heads' together. offset: added to norms' weights.
    scale: of the scores. window: positions that a token sees, its own included; 0 for all. table: which of the tables
    of rotations turns queries and keys; -1 for none. gelu: GELU by tanh in the MLP instead of SiLU.
    """

    reading: tuple[Weights, ...]
    out: Weights
    gate: Weights
    up: Weights
    down: Weights
    read_norm: Float[Tensor, " H"] | None
    norm: Float[Tensor, " H"] | None
    out_norm: Float[Tensor, " H"] | None
    down_norm: Float[Tensor, " H"] | None
    query_norm: Float[Tensor, " n"] | None
    key_norm: Float[Tensor, " m"] | None
    heads: int
    kv_heads: int
    dim: int
    epsilon: float
    scale: float
    offset: float = 0.0
    window: int = 0
    table: int = 0
    gelu: bool = False

    @property
    def linears(self) -> tuple[Weights, ...]:
        return *self.reading, self.out, self.gate, self.up, self.down

    @property
    def norms(self) -> tuple[Tensor | None, ...]:
        """The weights of norms, in the order of the structure in C."""
        return self.read_norm, self.norm, self.out_norm, self.down_norm, self.query_norm, self.key_norm


class PackedLayers:
    """Decoder layers of one shape, and with one window where they have any.

    rounded, int4: see `Kind.of`. stored: finds the numbers of a weight that came as such; with it none is rounded.
    width: floats of room that a state needs. window: of the layers that have one, else 0.
    """

    def __init__(
        self, layers: Iterable[LayerParts], rounded: bool = False, int4: bool = False, stored: Stored | None = None
    ):
        self.rounded, self.int4, self.window = rounded, int4, 0
        self._stored = stored
        self._packed_parts: list[Any] = []  # which the structures point to
        made = [self._packed(layer) for layer in layers]
        self.reads: PackedMatrix = self._packed_parts[0]  # the first layer's projections to queries, keys and values
        self.structs = (structs.layer * len(made))(*made)
        first = made[0]
        self.heads, self.kv_heads, self.dim = first.heads, first.kv_heads, first.dim
        every_head = (self.heads + 2 * self.kv_heads) * self.dim
        self.width = first.out.outputs + max(every_head, first.gate.outputs) + self.heads * self.dim

    def __len__(self) -> int:
        return len(self.structs)

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices, see `PackedMatrix.nbytes`."""
        return sum(part.nbytes for part in self._packed_parts if isinstance(part, PackedMatrix))

    @property
    def cached(self) -> torch.dtype:
        """Return the dtype of keys and values that goes with the layers' products."""
        return torch.bfloat16 if self.structs[0].qkv.kind >= Kind.BF16 else torch.float32

    def _joined(self, linears: Sequence[Weights]) -> PackedMatrix:
        """Return one matrix of linear maps that read the same."""
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        if self._stored and all(numbers := [self._stored(linear.weight) for linear in linears]):
            return NumbersMatrix(numbers, bias)
        weight = torch.cat([linear.weight for linear in linears])
        return PackedMatrix(weight, bias, Kind.of(weight, self.rounded and not self._stored, self.int4))

    def _packed(self, layer: LayerParts) -> ctypes.Structure:
        linears = [layer.reading, *((linear,) for linear in (layer.out, layer.gate, layer.up, layer.down))]
        matrices = [self._joined(some) for some in linears]
        norms = [None if norm is None else PackedNorm(norm, layer.epsilon, layer.offset) for norm in layer.norms]
        self._packed_parts += [*matrices, *norms]
        self.window = max(self.window, layer.window)
        return structs.layer(
            *(matrix.struct for matrix in matrices),
            *(None if norm is None else pointer(norm.weight, torch.float32) for norm in norms),
            *(layer.dim if norm is None else len(norm.weight) for norm in norms[-2:]),
            *(layer.heads, layer.kv_heads, layer.dim, layer.window, layer.table, layer.gelu),
            *(layer.epsilon, layer.scale),
        )

    def __call__(
        self,
        x: Float[Tensor, "R H"],
        turns: Sequence[tuple[Float[Tensor, "P h"], Float[Tensor, "P h"]]],
        positions: Int[Tensor, " R"],
        buffers: LayerBuffers,
        slots: Int[Tensor, " R"],
        sight: Sight,
        tapped: dict[int, Tensor | None],
        offset: int = 0,
        read: Float[Tensor, "R O"] | None = None,
        wanted: Int[Tensor, " k"] | None = None,
    ) -> None:
        """Replace R states by the last layer's outputs.

        wanted: rising numbers of the states whose outputs are wanted, which become x[:k]; those of the others are not
        computed.

        turns: tables of cosines and sines of all positions below P, for half of the dimensions that turn; IndexError
        for a state that stands at none of these. buffers: keys and values of each layer, to which the states' own are
        written, in slots[r] + offset. `slots` and `sight` count from a buffer's first slot, in its first head.
        The inputs of the layers that are keys of `tapped` become its values, (1, R, H); the number of layers stands for
        the outputs. read: queries, keys and values of the first layer, if they are not made from x; they are changed.
        """
        strides, threads, whole, real = buffers[0].stride(), torch.get_num_threads(), torch.int64, torch.float32
        assert buffers.alike
        is_bf16 = buffers[0].dtype == torch.bfloat16
        assert kernels().best_kind() >= Kind.BF16 if is_bf16 else buffers[0].dtype == torch.float32
        positions = positions.contiguous()
        assert len(buffers) == len(self)
        assert (read is None) == (self.reads.struct.inputs == x.shape[1]), "what reads more than states needs `read`"
        assert read is None or read.shape == (len(x), self.reads.struct.outputs)
        assert wanted is None or not tapped
        assert not self.window or sight.windowed is not None
        taps = (ctypes.c_void_p * (len(self) + 1))()
        for number in tapped:
            tapped[number] = tap = torch.empty_like(x[None])
            taps[number] = pointer(tap, real)
        cache = structs.cache(
            ctypes.addressof(buffers.addresses), strides[0], strides[-3], pointer(slots, whole), offset, is_bf16
        )
        mask = sight.mask if sight.windowed is None else sight.windowed
        visible = [column.contiguous() for column in (*sight[:3], mask)]
        tree_slots = mask.shape[1]
        seen = structs.sight(*pointers(visible, (whole, whole, torch.bool, torch.bool)), tree_slots, sight.longest)
        lanes = panel() // 2
        room = x.new_empty(len(x) * self.width + threads * lanes * (sight.longest + tree_slots + lanes))
        tables = (structs.rotations * len(turns))(
            *((*pointers(table, (real, real)), table[0].shape[1], len(table[0])) for table in turns)
        )
        states, first = pointer(x, real), None if read is None else pointer(read, real)
        of_last = (None, 0) if wanted is None else (pointer(wanted, whole), len(wanted))
        stack = (self.structs, len(self), states, first, tables, pointer(positions, whole), len(x), *of_last)
        if kernels().decoder_layers(*stack, cache, seen, pointer(room, real), ctypes.addressof(taps), threads):
            raise IndexError(f"a state at a position that is not among the {len(turns[0][0])} known ones")


def packable(layer: LayerParts, halves: Sequence[int]) -> bool:
    """Return True if the kernels are there and have the layer's shape: matrices and norms of one width, dimensions in
    whole panels, weights all in bf16 or all in float32, on a CPU. halves: columns of each table of rotations."""
    if kernels() is None:
        return False
    kinds = {(linear.weight.device.type, linear.weight.dtype) for linear in layer.linears}
    if len(kinds) > 1 or not kinds <= {("cpu", torch.float32), ("cpu", torch.bfloat16)}:
        return False
    hidden, inner = layer.down.weight.shape
    read, dim = layer.reading[0].weight.shape[1], layer.dim
    queries, keys = layer.heads * dim, layer.kv_heads * dim
    if any(linear.weight.shape[1] != read for linear in layer.reading):
        return False
    outputs = tuple(len(linear.weight) for linear in layer.reading)
    shapes = tuple(tuple(linear.weight.shape) for linear in (layer.out, layer.gate, layer.up))
    if outputs not in ((queries, keys, keys), (queries + 2 * keys,)):
        return False
    if shapes != ((hidden, queries), (inner, hidden), (inner, hidden)):
        return False
    if len({linear.bias is None for linear in layer.reading}) > 1:
        return False
    widths = [{hidden}] * 4 + [{dim, queries}, {dim, keys}]
    sized = zip(layer.norms, widths, strict=True)
    if any(norm is not None and (norm.dim() != 1 or len(norm) not in width) for norm, width in sized):
        return False
    half = halves[layer.table] if layer.table >= 0 else 0
    return all(size % panel() == 0 for size in (dim, hidden, inner, 2 * half)) and 2 * half <= dim
