"""Continue prompts by ONNX Runtime GenAI, in an environment that has `onnxruntime-genai`.

    build/onnx/bin/python -P onnx_genai_worker.py FOLDER THREADS

It reads a request as a line of JSON from stdin, and writes its answer as a line to stdout, until stdin ends. `options`
are the library's of speculation:

    {"prompt": [1, 2], "limit": 96, "eos": [2], "options": {"ngram_size": 3, "max_draft_tokens": 5}}
    {"tokens": [5, 7, 2], "first": 0.1, "seconds": 0.3, "rounds": 2}
    {"prefix": [1, 2], "rows": 4}
    {"seconds": 0.01}

`-P` leaves this folder out of Python's path. The module imports nothing of c2t, which that environment does not have.
"""

import json
import sys
import time
from typing import Any

MISSES = "standard_fallback_steps"  # tokens that come without a draft
ROOM = 64  # tokens after a prefix


def load(api: Any, folder: str, threads: int) -> Any:
    """Return a model of the library with this many threads. api: the library's module."""
    # Within a forward its threads spin; by default they do for 30 ms after it as well, and slow down what runs next.
    session = {"intra_op_num_threads": threads, "session.force_spinning_stop": "1"}
    config = api.Config(folder)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    return api.Model(config)


def answer(
    api: Any,
    model: Any,
    prompt: list[int],
    limit: int,
    eos: list[int],
    options: dict[str, Any] | None = None,
    **_others: Any,
) -> dict[str, Any]:
    """Continue a prompt greedily on a clock, and return the answer to a request.

    options: of speculation; none decode plainly. A text also ends with an eos of the model's config. first, seconds:
    until the first token, and until the last. rounds: forwards after the prompt's, of which speculation may need more
    than tokens: a draft after a token without one is verified in a forward of its turn.
    """
    ends, tokens, first, misses, start = set(eos), [], 0.0, 0, time.perf_counter()
    params = api.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + limit, do_sample=False)
    if options:
        params.set_speculative_options(**options)
    generator = api.Generator(model, params)
    generator.append_tokens(prompt)
    while not tokens or not (generator.is_done() or tokens[-1] in ends):
        if options:
            misses = generator.get_speculative_stats()[MISSES]  # takes microseconds
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
        first = first or time.perf_counter() - start
    seconds = time.perf_counter() - start
    # The library does not count the forward of a token that came without a draft, which begins the next step.
    passes = generator.get_speculative_stats()["target_forward_passes"] if options else len(tokens) - 1
    return {"tokens": tokens, "first": first, "seconds": seconds, "rounds": passes + misses}


class Prefix:
    """A prefix, and forwards of at most ROOM tokens after it."""

    def __init__(self, api: Any, model: Any, tokens: list[int]):
        params = api.GeneratorParams(model)
        params.set_search_options(max_length=len(tokens) + ROOM, do_sample=False)
        self.tokens, self._generator = tokens, api.Generator(model, params)
        self._generator.append_tokens(tokens)

    def time_rows(self, rows: int) -> dict[str, float]:
        """Return the seconds of one forward of this many tokens, logits of all that the model returns included."""
        tokens = (self.tokens * (rows // len(self.tokens) + 1))[:rows]
        start = time.perf_counter()
        self._generator.append_tokens(tokens)
        seconds = time.perf_counter() - start
        self._generator.rewind_to(len(self.tokens))
        return {"seconds": seconds}


def main(api: Any, arguments: list[str]) -> None:
    """Answer the requests of stdin."""
    folder, threads = arguments
    model, prefix = load(api, folder, int(threads)), None
    print(json.dumps({"version": api.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "rows" in request:
            if prefix is None or prefix.tokens != request["prefix"]:
                prefix = Prefix(api, model, request["prefix"])
            reply = prefix.time_rows(request["rows"])
        else:
            reply = answer(api, model, **request)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    import onnxruntime_genai

    main(onnxruntime_genai, sys.argv[1:])
