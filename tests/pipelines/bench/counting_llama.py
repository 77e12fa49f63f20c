"""A library in the stead of llama.cpp's, with its types and functions: the next token depends on all tokens of the
cache, so that an answer is right only if the cache holds the text. It imports nothing of c2t."""

import ctypes
import shutil
from types import SimpleNamespace

VOCABULARY = 8
LLAMA_FLASH_ATTN_TYPE_DISABLED = 0
LLAMA_FTYPE_MOSTLY_Q4_0, LLAMA_FTYPE_MOSTLY_Q4_1, LLAMA_FTYPE_MOSTLY_Q8_0 = 2, 3, 7


class llama_batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class Quantize(ctypes.Structure):
    _fields_ = [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int)]


class Context:
    """Tokens by position, as keys and values would be."""

    def __init__(self) -> None:
        self.cache: dict[int, int] = {}
        self.logits = (ctypes.c_float * 1)()


def following(tokens: list[int]) -> int:
    """Return the token after a text: mostly the one before the last, else a sum over the whole text."""
    return tokens[-2] if len(tokens) % 5 and len(tokens) > 1 else sum(tokens) % VOCABULARY


def llama_backend_init() -> None:
    pass


def llama_model_default_params() -> SimpleNamespace:
    return SimpleNamespace()


def llama_context_default_params() -> SimpleNamespace:
    return SimpleNamespace()


def llama_model_load_from_file(path: bytes, _params: SimpleNamespace) -> str | None:
    return None if b"missing" in path else "model"


def llama_init_from_model(_model: str, params: SimpleNamespace) -> Context | None:
    assert params.n_threads == params.n_threads_batch > 0
    return Context() if params.n_ctx <= 2048 else None


def llama_get_memory(context: Context) -> Context:
    return context


def llama_model_get_vocab(model: str) -> str:
    return model


def llama_vocab_n_tokens(_vocab: str) -> int:
    return VOCABULARY


def llama_print_system_info() -> bytes:
    return b"none"


def llama_batch_init(size: int, _embedding: int, _sequences: int) -> llama_batch:
    numbers, flags = (ctypes.c_int32 * size), (ctypes.c_int8 * size)
    rows = (ctypes.POINTER(ctypes.c_int32) * size)(*(ctypes.pointer(ctypes.c_int32(-1)) for _ in range(size)))
    integer = ctypes.POINTER(ctypes.c_int32)
    return llama_batch(
        0,
        ctypes.cast(numbers(), integer),
        ctypes.cast(numbers(), integer),
        ctypes.cast(numbers(), integer),
        rows,
        ctypes.cast(flags(), ctypes.POINTER(ctypes.c_int8)),
    )


def llama_memory_seq_rm(context: Context, sequence: int, begin: int, end: int) -> bool:
    assert (sequence, end) == (0, -1)
    context.cache = {position: token for position, token in context.cache.items() if position < begin}
    return True


def llama_decode(context: Context, batch: llama_batch) -> int:
    rows = []
    for at in range(batch.n_tokens):
        position = batch.pos[at]
        if position != len(context.cache) or batch.n_seq_id[at] != 1 or batch.seq_id[at][0] != 0:
            return 1  # a gap, or a token that was not removed
        context.cache[position] = batch.token[at]
        if batch.logits[at]:
            best = following(list(context.cache.values()))
            rows += [float(token == best) for token in range(VOCABULARY)]
    context.logits = (ctypes.c_float * max(1, len(rows)))(*rows)
    return 0


def llama_get_logits(context: Context) -> "ctypes._Pointer[ctypes.c_float]":
    return ctypes.cast(context.logits, ctypes.POINTER(ctypes.c_float))


def llama_model_quantize_default_params() -> Quantize:
    return Quantize()


def llama_model_quantize(source: bytes, target: bytes, params: "ctypes._CArgObject") -> int:
    """Copy the file: which types the real one has is not tested with this."""
    wanted = params._obj
    if wanted.nthread < 1 or wanted.ftype not in (2, 3, 7) or b"missing" in source:
        return 1
    shutil.copyfile(source, target)
    return 0
