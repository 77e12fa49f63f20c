"""Compiles all kernels for sm_90; run without TRITON_INTERPRET.

Arguments have the alignment that they have at run time, since without it the compiler plans less shared memory.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from c2t.kernels import compact, rows, select, tree_attention, tree_mask, walk

TARGET = GPUTarget("cuda", 90, 32)
SHARED = 227 * 2**10  # bytes that a block may have on an H100 or H200


def build(kernel, types: dict[str, str], constants: dict[str, object], **options: int) -> None:
    """Arguments that are named nowhere are 32-bit integers."""
    signature = dict.fromkeys(kernel.arg_names, "i32") | types | dict.fromkeys(constants, "constexpr")
    aligned = [i for i, name in enumerate(kernel.arg_names) if signature[name][0] == "*" or name[1:2] == "_"]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    built = triton.compile(source, target=TARGET, options=options)
    print(kernel.__name__, types, constants, built.metadata.shared, "bytes of shared memory")
    assert built.metadata.shared <= SHARED
    assert built.asm["cubin"]


def attention(dtype: str, group: int, dim: int, window: int, splits: int) -> None:
    itemsize = {"fp16": 2, "bf16": 2, "fp32": 4}[dtype]
    constants = tree_attention.blocking(group, dim, itemsize)
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages")}
    results = "fp32" if splits > 1 else dtype
    types = dict.fromkeys(("query", "key", "value"), f"*{dtype}") | {"part": f"*{results}", "weight": f"*{results}"}
    mask = ("bits", "block", "count", "lengths", "sizes", "positions")
    types |= {**dict.fromkeys(mask, "*i32"), "scale": "fp32"}
    constants |= {"WINDOW": window, "SPLITS": splits, "PRECISION": "ieee"}
    for ranges in (False, True):  # which are not read where rows are not laid end to end
        places = dict.fromkeys(("first_query", "starts", "tails"), "*i64" if ranges else "*i32")
        build(tree_attention._attend, types | places, constants | {"RANGES": ranges}, **options)
    if splits > 1:
        types = {"part": "*fp32", "weight": "*fp32", "out": f"*{dtype}"}
        build(tree_attention._merge, types, {"SPLITS": splits, "DIM": dim, "TILE": 16})


attention("bf16", group=4, dim=128, window=0, splits=8)
attention("bf16", group=8, dim=64, window=4096, splits=1)
attention("fp32", group=3, dim=128, window=0, splits=1)
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

types = dict.fromkeys(("parent", "positions", "lengths"), "*i64") | {"alive": "*i1"}
types |= dict.fromkeys(("bits", "block", "count", "new_lengths", "sizes", "new_positions"), "*i32")
build(tree_mask._make, types, {"PADDED": 2, "TILE": 64})
