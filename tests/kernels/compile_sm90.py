"""Compiles all kernels for sm_90; run without TRITON_INTERPRET.

Arguments have the alignment that they have at run time, since without it the compiler plans less shared memory.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from c2t.kernels import compact, level_attention, rms_norm, rows, select, tree_attention, tree_mask, walk

TARGET = GPUTarget("cuda", 90, 32)
SHARED = 227 * 2**10  # bytes that a block may have on an H100 or H200


def build(kernel, types: dict[str, str], constants: dict[str, object], **options: object) -> str:
    """Return the PTX. Arguments that are named nowhere are 32-bit integers."""
    signature = dict.fromkeys(kernel.arg_names, "i32") | types | dict.fromkeys(constants, "constexpr")
    aligned = [i for i, name in enumerate(kernel.arg_names) if signature[name][0] == "*" or name[1:2] == "_"]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    built = triton.compile(source, target=TARGET, options=options)
    print(kernel.__name__, types, constants, built.metadata.shared, "bytes of shared memory")
    assert built.metadata.shared <= SHARED
    assert built.asm["cubin"]
    return built.asm["ptx"]


def level_of(dtype: str, group: int, dim: int, splits: int) -> None:
    constants = level_attention.blocking(group, dim, {"fp16": 2, "bf16": 2, "fp32": 4}[dtype])
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages")}
    results = "fp32" if splits > 1 else dtype
    types = dict.fromkeys(("query", "key", "value"), f"*{dtype}") | {"part": f"*{results}", "weight": f"*{results}"}
    types |= {"bits": "*i32", "lengths": "*i32", "sizes": "*i32", "scale": "fp32"}
    build(level_attention._attend, types, constants | {"SPLITS": splits, "PRECISION": "ieee"}, **options)
    if splits > 1:
        types = {"part": "*fp32", "weight": "*fp32", "out": f"*{dtype}"}
        build(level_attention._merge, types, {"SPLITS": splits, "DIM": dim, "TILE": 16})


def tree(dtype: str, group: int, dim: int, window: int) -> None:
    """In bfloat16 and float16 prefix and tail multiply by one instruction, in one order of 16 terms, and nothing is
    contracted that is not in the other."""
    itemsize = {"fp16": 2, "bf16": 2, "fp32": 4}[dtype]
    sizes = tree_attention.blocking(group, dim * itemsize)
    warps = sizes.pop("num_warps")
    types = dict.fromkeys(("query", "key", "value", "out"), f"*{dtype}") | {"scale": "fp32"}
    types |= dict.fromkeys(("peaks", "totals", "sums"), "*fp32")
    types |= dict.fromkeys(("path", "lengths", "sizes", "positions"), "*i32")
    constants = {"WINDOW": window, "GROUP": group, "KEYS": tree_attention.KEYS, "PART": tree_attention.PART}
    constants |= {"DIM": dim, "PRECISION": "ieee"}
    options = {"num_stages": 2, "enable_fp_fusion": False}
    rows = {"ROWS": max(16, triton.next_power_of_2(group))}
    for ranges in (False, True):  # which are not read where rows are not laid end to end
        places = dict.fromkeys(("first_query", "starts", "tails"), "*i64" if ranges else "*i32")
        given = types | places, constants | {"RANGES": ranges}
        without = {name: kind for name, kind in given[0].items() if name not in ("path", "out", "tails")}
        parts = [
            build(tree_attention._prefix, without, given[1] | sizes, num_warps=warps, **options),
            build(tree_attention._tail, *given[:1], given[1] | rows, num_warps=2, **options),
        ]
        for ptx in parts:
            assert "fma.rn" not in ptx or dtype == "fp32"
            assert "wgmma" not in ptx
            assert ("mma.sync.aligned.m16n8k16" in ptx) == (dtype != "fp32")


level_of("bf16", group=4, dim=128, splits=8)
level_of("bf16", group=8, dim=64, splits=1)
level_of("fp32", group=3, dim=128, splits=1)
tree("bf16", group=4, dim=128, window=0)
tree("bf16", group=1, dim=128, window=0)
tree("fp16", group=8, dim=64, window=4096)
tree("bf16", group=3, dim=256, window=0)
tree("fp32", group=3, dim=128, window=0)
tree("fp32", group=1, dim=256, window=0)
types = {"like": "*bf16", **dict.fromkeys(("addresses", "index", "count", "source", "target"), "*i64")}
build(compact._compact, types, {"PATH": 16, "DIM": 128})

sums = {"best": "*i64", "sums": "*fp32", "values": "*fp32"}  # 15 x 32000 logits, K = 15, M = 1000
shared = {"K": 15, "WIDTH": 16, "M": 1000, "WHOLE": False, "UNUSED": 16}
build(rows._reduce, sums | {"logits": "*bf16"}, shared | {"CHUNK": 4096, "KEPT": 1024}, num_warps=8)
ranked = {"token": "*i64", **dict.fromkeys(("log_prob", "entropy", "log_norm"), "*fp32")}
build(rows._merge, sums | ranked, shared | {"PARTS": 8, "TILE": 8192}, num_warps=16)
integers = ("token", "parent", "depth", "rank", "sizes", "capped", "new_token")
floats = ("log_prob", "log_joint", "entropy", "max_log_prob", "score", "new_log_prob", "new_entropy")
weights = ("hidden_weight", "hidden_bias", "output_weight", "output_bias")
types = dict.fromkeys(integers, "*i64") | dict.fromkeys((*floats, *weights), "*fp32")
types |= {"alive": "*i1", "bits": "*i32", "threshold": "fp32"}
for width, K, size, network in (
    (15, 15, 256, {"FEATURES": (6, 8, 10, 2, 4), "HIDDEN": 48, "CONDITIONAL": True}),
    (64, 32, 2048, {"FEATURES": (), "HIDDEN": 0, "CONDITIONAL": False}),
):
    slots = {"SLOTS": 1 + 10 * width, "WORDS": 5 if width == 15 else 21, "PADDED": 8 if width == 15 else 32}
    level = {"F": width, "K": K, "SIZE": size, "LEVEL": width, "WIDTH": 16 if width == 15 else 64, "STRICT": False}
    build(select._select, types, network | slots | level, num_warps=1 if width == 15 else 8)

types = dict.fromkeys(("chosen", "index", "token", "parent", "path", "bonus"), "*i64")
for logits in ("*bf16", "*fp32"):
    build(walk._walk, types | {"logits": logits, "alive": "*i1", "ends": "*fp64"}, {"TILE": 64})

types = dict.fromkeys(("parent", "positions", "lengths", "first"), "*i64") | {"alive": "*i1"}
types |= dict.fromkeys(("path", "new_lengths", "sizes", "new_positions"), "*i32")
build(tree_mask._make, types, {"TILE": 64})

types = {**dict.fromkeys(("x", "weight", "out"), "*bf16"), "epsilon": "fp32", "offset": "fp32"}
build(rms_norm._norm, types, {"EARLY": True, "TILE": 4096}, num_warps=8, enable_fp_fusion=False)
