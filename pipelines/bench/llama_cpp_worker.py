"""Continue prompts by llama.cpp's C interface, in an environment that has `llama-cpp-python`.

    build/llama.cpp/bin/python -P llama_cpp_worker.py run MODEL.gguf THREADS POSITIONS
    build/llama.cpp/bin/python -P llama_cpp_worker.py quantize FROM.gguf TO.gguf TYPE THREADS

`run` reads a request as a line of JSON from stdin, and writes its answer as a line to stdout, until stdin ends:

    {"prompt": [1, 2], "limit": 96, "eos": [2], "lookup": 5, "shortest": 2}
    {"tokens": [5, 7, 2], "first": 0.1, "seconds": 0.3, "rounds": 2}
    {"prefix": [1, 2], "rows": 4}
    {"seconds": 0.01}

`-P` leaves this folder out of Python's path, where `llama_cpp.py` would hide the package of that name. The module
imports nothing of c2t, which that environment does not have.
"""

import ctypes
import json
import sys
import time
from typing import Any

import numpy as np

BATCH = 512  # tokens of a forward at most; llama.cpp has room for the logits of all of them
LONGEST = 4  # tokens of an n-gram, as in llama.cpp's own lookup decoding
TYPES = {"Q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0", "Q4_1": "LLAMA_FTYPE_MOSTLY_Q4_1", "Q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0"}


class Failed(RuntimeError):
    """A call of llama.cpp that returned an error."""


class Model:
    """A GGUF file in llama.cpp, and the keys and values of one text. api: the module of llama.cpp's functions.

    Raises Failed for a file that llama.cpp does not load, and for a forward that it does not run.
    """

    def __init__(self, api: Any, path: str, threads: int, positions: int):
        self.api, self.length = api, 0
        self.prefix: list[int] = []  # what `time_rows` has put at the text's begin
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self._model:
            raise Failed(f"llama.cpp does not load {path}")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = positions, BATCH, BATCH
        params.n_threads = params.n_threads_batch = threads
        # By default it is on. On a processor with AVX-512 it makes 8 rows after 256 tokens cost twice as much.
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise Failed(f"llama.cpp has no room for {positions} positions of {path}")
        self._memory = api.llama_get_memory(self._context)
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(BATCH, 0, 1)
        # Views of the batch, because ctypes takes a microsecond for every number that is stored through it.
        fields = (self._batch.token, self._batch.pos, self._batch.logits, self._batch.n_seq_id)
        self._tokens, self._positions, self._wanted, self._sequences = (
            np.ctypeslib.as_array(field, shape=(BATCH,)) for field in fields
        )
        self._sequences[:] = 1
        for number in range(BATCH):
            self._batch.seq_id[number][0] = 0

    def cut(self, length: int) -> None:
        """Remove the keys and values of all but the text's first `length` tokens."""
        if length < len(self.prefix):
            self.prefix = []
        if length < self.length and not self.api.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise Failed(f"llama.cpp does not remove positions from {length} on")
        self.length = length

    def forward(self, tokens: list[int], begin: int, every: bool = False) -> list[int]:
        """Put tokens after the first `begin` ones of the text, whose others are removed; return the most probable next
        token after the last of them, or after each with `every`."""
        self.cut(begin)
        best: list[int] = []
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            count, last = len(part), start + len(part) == len(tokens)
            self._tokens[:count] = part
            self._positions[:count] = np.arange(begin + start, begin + start + count)
            self._wanted[:count] = every
            self._wanted[count - 1] = every or last
            self._batch.n_tokens = count
            code = self.api.llama_decode(self._context, self._batch)
            if code:
                raise Failed(f"llama_decode returned {code}")
            rows = count if every else int(last)
            if rows:
                logits = self.api.llama_get_logits(self._context)  # waits for the forward
                best += np.ctypeslib.as_array(logits, shape=(rows, self.vocabulary)).argmax(1).tolist()
        self.length = begin + len(tokens)
        return best


class NGrams:
    """The n-grams of a text up to LONGEST tokens, each with where it was followed last."""

    def __init__(self, tokens: list[int]):
        self._text: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: list[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            for size in range(1, min(LONGEST, len(self._text)) + 1):
                self._next[tuple(self._text[-size:])] = len(self._text)
            self._text.append(token)

    def draft(self, count: int, shortest: int = 1) -> list[int]:
        """Return what followed the longest n-gram that ends the text and is in it before: at most `count` tokens, none
        without such an n-gram of `shortest` tokens or more."""
        for size in range(min(LONGEST, len(self._text)), shortest - 1, -1):
            start = self._next.get(tuple(self._text[-size:]))
            if start is not None:
                return self._text[start : start + count]
        return []


def answer(
    model: Any, prompt: list[int], limit: int, eos: list[int], lookup: int = 0, shortest: int = 1, **_others: Any
) -> dict[str, Any]:
    """Continue a prompt greedily on a clock, and return the answer to a request.

    lookup: tokens that are drafted in a round at most, from the n-grams of prompt and text; 0 decodes plainly.
    shortest: tokens of an n-gram at least. A round is one forward of the last token and the draft, of which the greedy
    prefix is accepted. rounds: forwards after the prompt's; first, seconds: until the first token, and until the last.
    """
    ends, rounds, start = set(eos), 0, time.perf_counter()
    tokens = model.forward(prompt, 0)
    first = time.perf_counter() - start
    ngrams = NGrams([*prompt, *tokens]) if lookup else None
    while len(tokens) < limit and tokens[-1] not in ends:
        # A round also brings the token after its draft.
        draft = ngrams.draft(min(lookup, limit - len(tokens) - 1), shortest) if ngrams else []
        best = model.forward([tokens[-1], *draft], len(prompt) + len(tokens) - 1, every=True)
        accepted = next((at for at, token in enumerate(draft) if token != best[at]), len(draft))
        new = best[: accepted + 1]
        new = new[: next((at + 1 for at, token in enumerate(new) if token in ends), len(new))]
        tokens += new
        rounds += 1
        if ngrams:
            ngrams.extend(new)
    return {"tokens": tokens, "first": first, "seconds": time.perf_counter() - start, "rounds": rounds}


def time_rows(model: Any, prefix: list[int], rows: int) -> dict[str, float]:
    """Return the seconds of one forward of this many tokens after a prefix, logits of all of them included. The prefix
    is run before it, unless it is what the text begins with."""
    if model.prefix != prefix:
        model.forward(prefix, 0)
        model.prefix = prefix
    model.cut(len(prefix))
    tokens = (prefix * (rows // len(prefix) + 1))[:rows]
    start = time.perf_counter()
    model.forward(tokens, len(prefix), every=True)
    return {"seconds": time.perf_counter() - start}


def quantize(api: Any, source: str, target: str, kind: str, threads: int) -> None:
    """Write a GGUF file in another type of TYPES, with the mixture of types that llama.cpp has for it. Raises Failed if
    llama.cpp does not write it."""
    params = api.llama_model_quantize_default_params()
    params.nthread, params.ftype = threads, getattr(api, TYPES[kind])
    code = api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if code:
        raise Failed(f"llama_model_quantize returned {code} for {source} in {kind}")


def main(api: Any, arguments: list[str]) -> None:
    """Run one of the two commands."""
    command, *rest = arguments
    if command == "quantize":
        source, target, kind, threads = rest
        quantize(api, source, target, kind, int(threads))
        return
    path, threads, positions = rest
    model = Model(api, path, int(threads), int(positions))
    print(json.dumps({"system": api.llama_print_system_info().decode()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        reply = time_rows(model, **request) if "rows" in request else answer(model, **request)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    from llama_cpp import llama_cpp

    main(llama_cpp, sys.argv[1:])
