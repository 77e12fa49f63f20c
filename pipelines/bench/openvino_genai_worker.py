"""Continue prompts by OpenVINO GenAI, in an environment that has it.

    build/openvino/bin/python -P openvino_genai_worker.py FOLDER THREADS plain
    build/openvino/bin/python -P openvino_genai_worker.py FOLDER THREADS lookup
    build/openvino/bin/python -P openvino_genai_worker.py FOLDER THREADS eagle3 HEAD
    build/openvino/bin/python -P openvino_genai_worker.py FOLDER THREADS rows

It reads a request as a line of JSON from stdin, and writes its answer as a line to stdout, until stdin ends. `options`
are fields of the library's `GenerationConfig`:

    {"prompt": [1, 2], "limit": 96, "eos": [2], "options": {"num_assistant_tokens": 5}}
    {"tokens": [5, 7, 2], "first": 0.1, "seconds": 0.3, "rounds": 2}

`rows` times forwards. The library runs none of a number of tokens that one chooses, so that its runtime is asked:

    {"prefix": [1, 2], "rows": 4}
    {"seconds": 0.01}

`-P` leaves this folder out of Python's path. The module imports nothing of c2t, which that environment does not have.
"""

import json
import sys
import time
from typing import Any

import numpy as np

PLAIN, LOOKUP, EAGLE3, ROWS = "plain", "lookup", "eagle3", "rows"


def load(genai: Any, folder: str, threads: int, way: str, head: str = "") -> Any:
    """Return the pipeline of a way to decode. Speculation needs the backend of continuous batching, so all ways have
    it; it is the default."""
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if way == PLAIN:
        options["ATTENTION_BACKEND"] = "PA"
    elif way == LOOKUP:
        options["prompt_lookup"] = True
    else:
        options["draft_model"] = genai.draft_model(head, "CPU", INFERENCE_NUM_THREADS=threads)
    return genai.LLMPipeline(folder, "CPU", **options)


def answer(
    genai: Any,
    pipeline: Any,
    tensor: Any,
    prompt: list[int],
    limit: int,
    eos: list[int],
    options: dict[str, Any] | None = None,
    **_others: Any,
) -> dict[str, Any]:
    """Continue a prompt greedily, and return the answer to a request. tensor(array): as the library takes it.

    rounds: forwards after the prompt's, where each brings one token; None with speculation.
    """
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.apply_chat_template = limit, False, False
    config.stop_token_ids = set(eos)
    for name, value in (options or {}).items():
        setattr(config, name, value)
    ids, start = tensor(np.array([prompt], dtype=np.int64)), time.perf_counter()
    result = pipeline.generate(ids, config)
    tokens = list(result.tokens[0])
    seconds = time.perf_counter() - start
    first = result.perf_metrics.get_ttft().mean / 1e3
    return {"tokens": tokens, "first": first, "seconds": seconds, "rounds": None if options else len(tokens) - 1}


class Prefix:
    """A prefix in the model's state, and forwards after it. request: of the runtime."""

    def __init__(self, request: Any, tokens: list[int]):
        self.tokens, self._request = tokens, request
        request.reset_state()
        self._forward(tokens, 0)
        self._states = [state.state for state in request.query_state()]

    def _forward(self, tokens: list[int], begin: int) -> float:
        """Run tokens after the first `begin` ones of the text; return the seconds."""
        end = begin + len(tokens)
        inputs = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(begin, end)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        start = time.perf_counter()
        self._request.infer(inputs, share_inputs=True, share_outputs=True)
        return time.perf_counter() - start

    def time_rows(self, rows: int) -> dict[str, float]:
        """Return the seconds of one forward of this many tokens after the prefix, logits of all of them included."""
        for state, stored in zip(self._request.query_state(), self._states, strict=True):
            state.state = stored
        tokens = (self.tokens * (rows // len(self.tokens) + 1))[:rows]
        return {"seconds": self._forward(tokens, len(self.tokens))}


def time_requests(runtime: Any, folder: str, threads: int) -> None:
    """Answer requests for forwards by the runtime of the library. runtime: its module."""
    model = runtime.Core().compile_model(f"{folder}/openvino_model.xml", "CPU", {"INFERENCE_NUM_THREADS": threads})
    request, prefix = model.create_infer_request(), None
    print(json.dumps({"version": runtime.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if prefix is None or prefix.tokens != asked["prefix"]:
            prefix = Prefix(request, asked["prefix"])
        print(json.dumps(prefix.time_rows(asked["rows"])), flush=True)


def main(genai: Any, runtime: Any, arguments: list[str]) -> None:
    """Answer requests. genai, runtime: the modules of the library and of what it runs on."""
    folder, threads, *way = arguments
    if way == [ROWS]:
        time_requests(runtime, folder, int(threads))
        return
    pipeline = load(genai, folder, int(threads), *way)
    print(json.dumps({"version": genai.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(genai, pipeline, runtime.Tensor, **json.loads(line))), flush=True)


if __name__ == "__main__":
    import openvino
    import openvino_genai

    main(openvino_genai, openvino, sys.argv[1:])
