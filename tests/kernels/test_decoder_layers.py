"""The layer in C computes what transformers' layer does, for each token the same bits whatever else is computed."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from c2t.kernels import decoder_layers
from c2t.kernels.decoder_layers import (
    BLOCK,
    GROUP,
    Kind,
    PackedLayers,
    PackedMatrix,
    PackedNorm,
    PackedReader,
    Sight,
    packable,
    to_int8,
)
from c2t.kernels.layer_buffers import LayerBuffers
from c2t.kernels.native import kernels
from c2t.models.target.families import FAMILIES
from c2t.models.target.rotations import Rotations
from tests.rounding import assert_same_sums, assert_within, dot_bound, growth

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")

# Not every processor has products in bf16, or of bytes; some kinds are only made of a file's numbers.
KINDS = [kind for kind in decoder_layers.works() if kind not in (Kind.INT4_K, Kind.INT8_GROUPS, Kind.INT8_K)]
PRODUCTS_IN_BF16 = [kind for kind in KINDS if kind > Kind.BF16_STORED]
# What a matrix is, and the dtype of the keys and values beside it.
CACHED = [(kind, torch.float32) for kind in KINDS] + [
    (kind, torch.bfloat16) for kind in KINDS if PRODUCTS_IN_BF16 and kind not in (Kind.FP32, Kind.BF16_STORED)
]  # an int4 form in bytes shares the target's
ROUNDED = (Kind.INT4, Kind.INT8)
LLAMA = FAMILIES["llama"]
needs_bytes = pytest.mark.skipif(Kind.INT8 not in KINDS, reason="this processor has no products of bytes")
HIDDEN, HEADS, KV_HEADS, DIM, INNER = 96, 6, 2, 32, 160
WIDE, WIDE_INNER = 192, 256  # whole blocks of inputs, for bytes
# A layer passes some 500 roundings in sequence, and enlarges errors at most 20-fold: its weights are of order 1/10.
LAYER = 20 * growth(500)


def layer_of(
    seed: int = 0, bias: bool = False, read: bool = True, wide: bool = False, kv_heads: int = KV_HEADS, dim: int = DIM
) -> LlamaDecoderLayer:
    config = LlamaConfig(
        hidden_size=WIDE if wide else HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        head_dim=dim,
        intermediate_size=WIDE_INNER if wide else INNER,
        attention_bias=bias,
        attn_implementation="eager",
    )
    layer = LlamaDecoderLayer(config, 0)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        around = 1.0 if parameter.dim() == 1 else 0.0
        parameter.data = (around + 0.1 * torch.randn(parameter.shape, generator=generator)).bfloat16().float()
    if not read:
        layer.input_layernorm = nn.Identity()
    return layer.requires_grad_(False).eval()


def packed_of(layer: LlamaDecoderLayer, rounded: bool = False, int4: bool = False) -> PackedLayers:
    return PackedLayers([LLAMA.parts(layer)], rounded, int4)


def inputs(
    rows: int, n: int, prefix: int, wide: bool = False, kv_heads: int = KV_HEADS, dim: int = DIM
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, positions, a mask in which every query sees itself, and a buffer with a prefix."""
    generator = torch.Generator().manual_seed(rows + n + prefix)
    mask = torch.rand(rows, n, prefix + n, generator=generator) < 0.7
    mask[:, :, prefix:] = torch.eye(n, dtype=torch.bool) | (mask[:, :, prefix:] & torch.ones(n, n).tril().bool())
    states = torch.randn(rows, n, WIDE if wide else HIDDEN, generator=generator)
    positions = torch.randint(0, 500, (rows, n), generator=generator)
    return states, positions, mask, torch.randn(2, rows, kv_heads, prefix + n + 3, dim, generator=generator)


def rotary(dim: int = DIM) -> LlamaRotaryEmbedding:
    return LlamaRotaryEmbedding(layer_of(dim=dim).self_attn.config)


def packed_output(
    layers: PackedLayers, x: Tensor, positions: Tensor, mask: Tensor, buffer: Tensor, last: int | None = None
) -> Tensor:
    """The layer's outputs for new tokens whose slots are the last of the mask. last: the last one's position, if it is
    another one."""
    rows, n, slots = mask.shape
    kv_heads, capacity, dim = buffer.shape[2:]
    first = (torch.arange(rows) * kv_heads * capacity)[:, None].expand(-1, n)
    sight = Sight(first.flatten(), torch.zeros(rows * n, dtype=torch.long), mask.flatten(0, 1), 0)
    places = (first + slots - n + torch.arange(n)).flatten()
    x, buffer = x.flatten(0, 1).clone(), buffer.contiguous()
    turns = Rotations(rotary(dim).inv_freq).below(int(positions.max()) + 1)
    turned = positions.flatten().clone()
    if last is not None:
        turned[-1] = last
    layers(x, [turns], turned, LayerBuffers([buffer]), places, sight, {})
    return x.unflatten(0, positions.shape)


class Prefix:
    """Cache for transformers' layer: a prefix, and what the layer appends."""

    def __init__(self, buffer: Tensor, length: int):
        self.keys, self.values = buffer[0, :, :, :length].double(), buffer[1, :, :, :length].double()

    def update(self, keys: Tensor, values: Tensor, *_args, **_kwargs) -> tuple[Tensor, Tensor]:
        return torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)


def exact_output(
    layer: LlamaDecoderLayer, x: Tensor, positions: Tensor, mask: Tensor, buffer: Tensor, prefix: int
) -> Tensor:
    """transformers' outputs in float64."""
    return layer.double()(
        x.double(),
        attention_mask=torch.where(mask, 0.0, -torch.inf)[:, None].double(),
        position_embeddings=tuple(part.double() for part in rotary()(x, positions)),
        past_key_values=Prefix(buffer, prefix),
    )


@pytest.mark.parametrize(("bias", "read"), [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize(("rows", "n", "prefix"), [(1, 1, 0), (1, 1, 37), (2, 5, 16), (1, 14, 3), (3, 33, 50)])
@torch.inference_mode()
def test_outputs_are_those_of_transformers(rows: int, n: int, prefix: int, bias: bool, read: bool) -> None:
    layer = layer_of(bias=bias, read=read)
    x, positions, mask, buffer = inputs(rows, n, prefix)
    found = packed_output(packed_of(layer), x, positions, mask, buffer.clone())
    exact = exact_output(layer, x, positions, mask, buffer, prefix)
    assert_within(found, exact, LAYER * exact.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 7, 16, 40, 200])
@torch.inference_mode()
def test_a_window_has_the_bits_of_a_mask(window: int, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a prompt's 33 tokens after 50 others, whose windows begin at as many slots: they are seen by one mask over all
    slots, or as a prefix that is cut and the new ones."""
    parts, n, prefix = LLAMA.parts(layer_as(kind, monkeypatch)), 33, 50
    x, _, _, buffer = inputs(1, n, prefix, kind in ROUNDED)
    positions = prefix + torch.arange(n)[None]
    back = positions.T - torch.arange(prefix + n)
    mask = (back >= 0) & (back < window)
    masked = PackedLayers([parts], True, kind == Kind.INT4)
    buffer = buffer.to(masked.cached)
    wanted = packed_output(masked, x, positions, mask[None], buffer.clone())
    windowed = PackedLayers([parts._replace(window=window)], True, kind == Kind.INT4)
    sight = Sight(
        *(torch.tensor([number] * n) for number in (0, prefix)),
        *(torch.ones(n, n, dtype=torch.bool).tril(), prefix, mask[:, prefix:]),
    )
    turns, found, slots = Rotations(rotary().inv_freq).below(prefix + n), x[0].clone(), prefix + torch.arange(n)
    windowed(found, [turns], positions[0], LayerBuffers([buffer.contiguous()]), slots, sight, {})
    assert torch.equal(found, wanted[0])


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_keys_and_values_are_kept_in_the_dtype_of_the_products(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layer appends is what it computes with float32 buffers, rounded; others' bytes stay as they are."""
    packed = packed_as(kind, monkeypatch)
    x, positions, mask, buffer = inputs(2, 5, 16, kind in ROUNDED)
    exact = buffer.clone()
    packed_output(packed, x, positions, mask, exact)
    assert packed.cached == (torch.bfloat16 if kind in PRODUCTS_IN_BF16 else torch.float32)
    found = buffer.to(packed.cached, copy=True)
    packed_output(packed, x, positions, mask, found)
    assert not torch.equal(exact, buffer)
    assert torch.equal(found, exact.to(packed.cached))


@torch.inference_mode()
def test_a_position_beyond_the_table_of_rotations_is_refused() -> None:
    """A kernel would read whatever stands behind it."""
    x, positions, mask, buffer = inputs(1, 2, 3)
    for position in (-1, 10**6):
        with pytest.raises(IndexError, match="known ones"):
            packed_output(packed_of(layer_of()), x, positions, mask, buffer, position)


def layer_as(kind: Kind, monkeypatch: pytest.MonkeyPatch, read: bool = True) -> LlamaDecoderLayer:
    """A layer that is packed so; whether that pays here does not count."""
    monkeypatch.setattr(decoder_layers, "fastest_in_bf16", lambda: kind)
    monkeypatch.setattr(decoder_layers, "rounds", lambda inputs: kind in ROUNDED)
    layer = layer_of(read=read, wide=kind in ROUNDED)
    if kind == Kind.FP32:  # weights that bf16 cannot hold
        for parameter in layer.parameters():
            parameter.data = parameter.data * (1 + 2**-12)
    return layer if kind == Kind.FP32 else layer.bfloat16()


def packed_as(kind: Kind, monkeypatch: pytest.MonkeyPatch, read: bool = True) -> PackedLayers:
    return packed_of(layer_as(kind, monkeypatch, read), True, kind == Kind.INT4)


@pytest.mark.parametrize(("kind", "cached"), CACHED)
@pytest.mark.parametrize("read", [True, False])
@torch.inference_mode()
def test_a_token_gets_the_same_bits_alone_and_among_others(
    kind: Kind, cached: torch.dtype, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tokens, rows of the batch, slots that it does not see, and the number of threads change nothing."""
    packed = packed_as(kind, monkeypatch, read)
    assert {matrix.kind for matrix in packed._packed_parts if isinstance(matrix, PackedMatrix)} == {kind}
    x, positions, mask, buffer = inputs(2, 31, 40, kind in ROUNDED)
    buffer = buffer.to(cached)
    together = packed_output(packed, x, positions, mask, buffer)
    for row, place in [(0, 0), (1, 7), (0, 13), (1, 30)]:
        seen = mask[row, place].nonzero()[:, 0]
        alone = buffer[:, row : row + 1, :, seen].clone()  # now holds the keys of the tokens before it, too
        one = (x[row, place][None, None], positions[row, place][None, None])
        for threads in (1, 2):
            before = torch.get_num_threads()
            torch.set_num_threads(threads)  # which sets the room's size, too
            try:
                found = packed_output(packed, *one, torch.ones(1, 1, len(seen), dtype=torch.bool), alone)
            finally:
                torch.set_num_threads(before)
            assert torch.equal(found[0, 0], together[row, place])


@pytest.mark.slow
@pytest.mark.parametrize("dim", [32, 64, 96, 128])
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_text_alone_has_the_same_bits_however_its_queries_are_shared_out(
    dtype: torch.dtype, kv_heads: int, dim: int
) -> None:
    """Over threads, and in groups of every size: one to 31 tokens, with two to six queries for a head of keys."""
    packed = packed_of(layer_of(kv_heads=kv_heads, dim=dim).to(dtype))
    before = torch.get_num_threads()
    for n in (1, 2, 3, 4, 5, 7, 12, 31):
        x, positions, mask, buffer = inputs(1, n, 20, kv_heads=kv_heads, dim=dim)
        buffer, found = buffer.to(packed.cached), []
        for threads in (1, 2, 3, 4, 7):
            torch.set_num_threads(threads)
            try:
                found.append(packed_output(packed, x, positions, mask, buffer.clone()))
            finally:
                torch.set_num_threads(before)
        assert all(torch.equal(found[0], other) for other in found[1:]), n
        packed_output(packed, x, positions, mask, buffer)  # whose slots now hold all tokens' keys
        for place in {0, n // 2, n - 1}:
            seen = mask[0, place].nonzero()[:, 0]
            one = x[:, place : place + 1], positions[:, place : place + 1]
            whole = torch.ones(1, 1, len(seen), dtype=torch.bool)
            alone = packed_output(packed, *one, whole, buffer[:, :, :, seen].clone())
            assert torch.equal(alone[0, 0], found[0][0, place]), (n, place)


# bf16 has 8 bits: an input is off by 2^-9 of itself at most, and a sum of many by less than that on average. A byte is
# off by at most 1/254 of the largest in its block or column, so by 1 % of the usual one's size, and the four matrices
# are one behind the other.
OFF = {**dict.fromkeys(PRODUCTS_IN_BF16, (2**-14, 2**-8)), Kind.INT8: (2**-12, 2**-4)}


@pytest.mark.parametrize(("kind", "cached"), [(kind, cached) for kind, cached in CACHED if kind in OFF])
@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize(("rows", "n", "prefix"), [(1, 1, 37), (2, 5, 16), (3, 33, 50)])
@torch.inference_mode()
def test_rounded_products_differ_by_the_rounding(
    rows: int, n: int, prefix: int, read: bool, kind: Kind, cached: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, layer = packed_as(kind, monkeypatch, read), layer_as(kind, monkeypatch, read)
    x, positions, mask, buffer = inputs(rows, n, prefix, wide=kind in ROUNDED)
    buffer = buffer.to(cached)
    found = packed_output(packed, x, positions, mask, buffer.clone())
    exact = exact_output(layer, x, positions, mask, buffer, prefix)
    least, most = OFF[kind]
    assert least < (found - exact).abs().mean() / exact.abs().mean() < most


def in_bytes(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The product in float64 of what float32 rounds weights and inputs to, and the same of their sizes."""
    rows, scales = to_int8(weight)
    columns, whole = (rows.double() - 128) * scales.double()[:, None], bytes_of(x)
    return whole @ columns.T, whole.abs() @ columns.T.abs()


def bytes_of(x: Tensor) -> Tensor:
    """What inputs are rounded to, in float64."""
    blocks = x.unflatten(-1, (-1, BLOCK))
    peaks = blocks.abs().amax(-1, keepdim=True)
    to_byte = torch.full_like(peaks, 127) / peaks  # of a number and a tensor torch takes the reciprocal
    return ((blocks * to_byte).round().nan_to_num() * (peaks / 127).double()).flatten(-2)


def in_nibbles(weight: Tensor) -> Tensor:
    """What 4 bits make of weights, each GROUP of an output with a scale and an offset in fp16."""
    groups = weight.unflatten(-1, (-1, GROUP))
    least, most = groups.aminmax(dim=-1, keepdim=True)
    scale, least = ((most - least) / 15).half().float(), least.half().float()
    whole = ((groups - least) / scale).nan_to_num().round().clamp(0, 15)
    return (whole.double() * scale.double() + least.double()).flatten(-2)


def rounded_product(kind: Kind, weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The product of what is rounded, in float64, and how far one in float32 may lie from it: sums of whole numbers are
    exact, so what differs is a product, a scale and a sum for every block; in 4 bits what is added and taken off again
    for each group."""
    width = weight.shape[1]
    if kind == Kind.INT8:
        exact, size = in_bytes(weight, x)
        return exact, growth(width // BLOCK + 3) * size
    rounded, groups = bytes_of(x), weight.unflatten(-1, (-1, GROUP))
    reach = (groups.abs().amax(-1, keepdim=True) + groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) * 1.01
    size = rounded.abs() @ reach.expand_as(groups).flatten(-2).double().T
    return rounded @ in_nibbles(weight).T, growth(width // GROUP + 5) * size


@needs_bytes
@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize("rows", [1, 8, 9, 30, 0])
@pytest.mark.parametrize(("outputs", "width"), [(1, 64), (32, 192), (70, 576)])
def test_matrices_of_bytes_and_of_halves_of_bytes(rows: int, outputs: int, width: int, kind: Kind) -> None:
    generator = torch.Generator().manual_seed(rows + width)
    weight, bias, x = (torch.randn(shape, generator=generator) for shape in ((outputs, width), outputs, (rows, width)))
    weight[0, : width if kind == Kind.INT8 else width // 2] = 0
    x[: rows // 2, :BLOCK] = 0
    exact, bound = rounded_product(kind, weight, x)
    assert_within(PackedMatrix(weight, kind=kind)(x), exact, bound)
    assert_within(PackedMatrix(weight, bias, kind)(x), exact + bias, bound + growth(1) * (exact + bias).abs())


@needs_bytes
def test_weights_that_were_rounded_to_four_bits_stay_as_they_are() -> None:
    """As those of a checkpoint whose blocks are as large, such as llama.cpp's Q4_1."""
    whole = torch.randint(0, 16, (70, 6, GROUP), generator=torch.Generator().manual_seed(0))
    whole[..., 0], whole[..., 1] = 0, 15
    weight = (whole * 0.01171875 - 0.0625).flatten(1)
    found = PackedMatrix(weight, kind=Kind.INT4)(torch.eye(6 * GROUP))  # whose inputs are exact in 8 bits
    assert_same_sums(found, weight.T, 8)


@needs_bytes
@pytest.mark.parametrize("size", [1e-3, 3e-5, 1.0, 300.0])
def test_no_weight_is_off_by_more_than_half_a_step(size: float) -> None:
    """And what fp16 makes of the scale and the offset; small ones are rounded more there."""
    weight = torch.randn(32, 2 * GROUP, generator=torch.Generator().manual_seed(0)) * size
    found = PackedMatrix(weight, kind=Kind.INT4)(torch.eye(2 * GROUP)).T
    groups = weight.unflatten(-1, (-1, GROUP))
    span = (groups.amax(-1) - groups.amin(-1)).repeat_interleave(GROUP, -1)
    half = 2.0**-11 * (span + weight.abs().amax()) + 16 * 2.0**-25  # 15 scales and an offset, each rounded
    assert ((found - weight).abs() <= span / 30 + half).all()


@needs_bytes
def test_weights_beyond_half_precision_stay_numbers() -> None:
    found = PackedMatrix(torch.full((32, 64), 1e6), kind=Kind.INT4)(torch.randn(3, 64))
    assert found.isfinite().all()


@needs_bytes
@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_bytes_do_not_hide_what_is_no_number(wrong: float, kind: Kind) -> None:
    """A draft's NaN is refused by its logits."""
    x = torch.randn(3, 128)
    x[1, 100] = wrong
    found = PackedMatrix(torch.randn(40, 128), kind=kind)(x)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("works", [True, False])
def test_only_what_can_be_rounded_is(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_layers, "works", lambda: [Kind.INT8, Kind.BF16_STORED] if works else [Kind.BF16_STORED])
    weight = torch.randn(40, 128)
    assert Kind.of(weight) == Kind.FP32
    assert Kind.of(weight, rounded=True) == (Kind.INT8 if works else Kind.FP32)
    assert Kind.of(weight, rounded=True, int4=True) == (Kind.INT4 if works else Kind.FP32)
    assert Kind.of(weight[:, 1:], rounded=True) == Kind.FP32  # no whole blocks


@pytest.mark.parametrize("shape", [(1, 96), (14, 96), (16, 96), (32, 96), (61, 96), (2, 5, 96), (0, 96)])
@pytest.mark.parametrize("outputs", [1, 32, 70])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ROUNDED])
def test_matrices_of_any_number_of_outputs(shape: tuple[int, ...], outputs: int, kind: Kind) -> None:
    weight, bias, x = torch.randn(outputs, 96), torch.randn(outputs), torch.randn(shape)
    weight = weight if kind == Kind.FP32 else weight.bfloat16()
    rounded = x.bfloat16().float() if kind > Kind.BF16_STORED else x
    exact = rounded.double() @ weight.double().T
    bound = dot_bound(rounded, weight.T)
    assert_within(PackedMatrix(weight, kind=kind)(x), exact, bound)
    found = PackedMatrix(weight, bias, kind)(x)
    assert found.shape == (*shape[:-1], outputs)
    assert_within(found, exact + bias, bound + growth(2) * (exact + bias).abs())


@pytest.mark.parametrize("fastest", [Kind.BF16_STORED, Kind.BF16, Kind.BF16_AMX])
def test_the_dtype_of_the_weights_chooses_the_arithmetic(fastest: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_layers, "fastest_in_bf16", lambda: fastest)
    weight = torch.randn(40, 64)
    assert Kind.of(weight) == Kind.FP32
    assert Kind.of(weight.bfloat16().float()) == Kind.BF16_STORED
    assert Kind.of(weight.bfloat16()) == fastest
    assert Kind.of(weight[:, 2:].bfloat16()) == (Kind.BF16 if fastest == Kind.BF16 else Kind.BF16_STORED)
    assert Kind.of(weight[:, 1:].bfloat16()) == Kind.BF16_STORED  # an odd number of inputs makes no pairs


@pytest.mark.parametrize(
    ("kinds", "dpbf16_is_faster", "fastest", "int8_is_fastest"),
    [
        ({Kind.BF16_STORED}, False, Kind.BF16_STORED, False),  # AVX2
        ({Kind.BF16_STORED, Kind.INT8}, False, Kind.BF16_STORED, True),  # Intel's with AVX512-VNNI
        ({Kind.BF16_STORED, Kind.BF16, Kind.INT8}, False, Kind.BF16_STORED, True),  # with AVX512-BF16, without AMX
        ({Kind.BF16_STORED, Kind.BF16, Kind.INT8}, True, Kind.BF16, True),  # Zen 4
        ({Kind.BF16_STORED, Kind.BF16, Kind.BF16_AMX, Kind.INT8}, False, Kind.BF16_AMX, False),  # AMX
    ],
)
def test_the_processor_decides_how_it_multiplies(
    kinds: set[Kind], dpbf16_is_faster: bool, fastest: Kind, int8_is_fastest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"best_kind": max(kinds), "has_int8": Kind.INT8 in kinds, "dpbf16_is_faster": dpbf16_is_faster}
    found = SimpleNamespace(**{name: lambda value=value: value for name, value in known.items()})
    monkeypatch.setattr(decoder_layers, "kernels", lambda: found)
    assert decoder_layers.fastest_in_bf16() == fastest
    assert decoder_layers.bf16_is_faster() == (fastest > Kind.BF16_STORED)
    assert decoder_layers.int8_is_fastest() == int8_is_fastest


def test_bf16_vectors_are_faster_on_amds_processors_alone() -> None:
    made_by_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    assert bool(kernels().dpbf16_is_faster()) == (made_by_amd and kernels().best_kind() >= Kind.BF16)


def test_no_clock_decides_about_arithmetic() -> None:
    """On a busy machine it would decide otherwise now and then, and results would not fit their own continuation."""
    sources = Path(decoder_layers.__file__).parent.glob("*.py")
    assert not [path.name for path in sources if re.search(r"^(import|from) time\b", path.read_text(), re.MULTILINE)]


def test_without_kernels_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_layers, "kernels", lambda: None)
    assert decoder_layers.fastest_in_bf16() == Kind.BF16_STORED
    assert not decoder_layers.int8_is_fastest()


def test_the_default_dtype_of_torch_changes_nothing() -> None:
    """Functions in C write float32, whatever else a program computes in."""
    layer, given = layer_of(), inputs(2, 5, 16)
    wanted = packed_output(packed_of(layer), *given)
    torch.set_default_dtype(torch.float64)
    try:
        packed = packed_of(layer)
        matrix = PackedMatrix(layer.self_attn.q_proj.weight)
        assert torch.equal(packed_output(packed, *given), wanted)
        assert matrix(given[0]).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(matrix(given[0]), PackedMatrix(layer.self_attn.q_proj.weight)(given[0]))


def test_weights_that_bf16_holds_give_the_bits_of_float32() -> None:
    weight, x = torch.randn(40, 64).bfloat16().float(), torch.randn(17, 64)
    small = PackedMatrix(weight)
    large = PackedMatrix(torch.cat([weight, torch.full((1, 64), 1 / 3)]))  # one row more, which bf16 does not hold
    assert small.kind == Kind.BF16_STORED
    assert large.kind == Kind.FP32
    assert torch.equal(small(x), large(x)[:, :40])


def test_norm() -> None:
    x = 3 * torch.randn(5, HIDDEN)
    exact = layer_of().input_layernorm.double()(x.double())
    assert_within(LLAMA.norm(layer_of().input_layernorm)(x), exact, growth(HIDDEN + 8) * exact.abs())


def test_what_the_kernels_cannot_run_is_left_to_torch() -> None:
    layer = layer_of()
    parts, half = LLAMA.parts(layer), DIM // 2
    assert packable(parts, [half])
    assert not packable(parts, [half + 1])
    assert not packable(parts, [DIM])
    changed = {"dim": DIM // 2, "up": parts.down, "read_norm": torch.ones(HIDDEN + 1), "query_norm": torch.ones(HIDDEN)}
    assert not any(packable(parts._replace(**{name: value}), [half]) for name, value in changed.items())
    assert packable(parts._replace(query_norm=torch.ones(DIM)), [half])
    assert packable(parts._replace(table=-1), [])
    assert not packable(LLAMA.parts(layer_of().double()), [half])


TOKENS = torch.tensor([8, 0, 3, 3, 5])


@pytest.fixture(params=itertools.product([torch.float32, torch.bfloat16], repeat=2), ids=str)
def read(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix, a table of embeddings and states, the first two in each dtype."""
    generator = torch.Generator().manual_seed(7)
    sizes = ((HIDDEN, 2 * HIDDEN), (9, HIDDEN), (len(TOKENS), HIDDEN))
    weight, table, states = (torch.randn(size, generator=generator) for size in sizes)
    return weight.to(request.param[0]), table.to(request.param[1]), 3 * states


@pytest.mark.parametrize("rounded", [False, pytest.param(True, marks=needs_bytes)])
def test_fc_reads_embedding_and_feature_side_by_side(read: tuple[Tensor, Tensor, Tensor], rounded: bool) -> None:
    """The same bits as the matrix on both, put side by side by torch."""
    weight, table, features = read
    linear = nn.Linear(2 * HIDDEN, HIDDEN).requires_grad_(False)
    linear.weight.data, linear.bias.data = weight, torch.randn(HIDDEN).to(weight.dtype)
    found = PackedReader.of(linear, rounded)(table, TOKENS, features)
    alone = PackedMatrix(linear.weight, linear.bias, Kind.of(linear.weight, rounded))
    assert (alone.kind == Kind.INT8) == rounded
    assert found.equal(alone(torch.cat([table[TOKENS].float(), features], -1)))
    for outside in (-1, 9):
        with pytest.raises(IndexError, match="9 known"):
            PackedReader.of(linear)(table, torch.tensor([0, outside]), features[:2])


def test_embedding_and_state_are_normalised(read: tuple[Tensor, Tensor, Tensor]) -> None:
    weight, table, states = read
    matrix, norms = PackedMatrix(weight), []
    for _ in range(2):
        norms.append(PackedNorm(torch.randn(HIDDEN), 0.5))
    found = PackedReader(matrix, (norms[0], norms[1]))(table, TOKENS, states)
    assert found.equal(matrix(torch.cat([norms[0](table[TOKENS].float()), norms[1](states)], -1)))
    assert not found.equal(PackedReader(matrix)(table, TOKENS, states))


def test_both_sides_of_every_step_are_known() -> None:
    found = decoder_layers.edges(33)
    assert {6, 7, 12, 13, 14, 15, 16, 17, 28, 29, 32, 33} <= found
    assert max(found) == 33
    assert not found & {1, 8, 22, 34}
