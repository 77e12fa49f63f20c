"""Continue prompts by OpenVINO GenAI, in an environment that has it.

    build/openvino/bin/python -P openvino_genai_worker.py FOLDER THREADS plain
    build/openvino/bin/python -P openvino_genai_worker.py FOLDER THREADS lookup
    build/openvino/bin/python -P openvino_genai_worker.py FOLDER THREADS eagle3 HEAD

It reads a request as a line of JSON from stdin, and writes its answer as a line to stdout, until stdin ends. `options`
are fields of the library's `GenerationConfig`:

    {"prompt": [1, 2], "limit": 96, "eos": [2], "options": {"num_assistant_tokens": 5}}
    {"tokens": [5, 7, 2], "first": 0.1, "seconds": 0.3, "rounds": 2}

`-P` leaves this folder out of Python's path. The module imports nothing of c2t, which that environment does not have.
"""

import json
import sys
import time
from typing import Any

import numpy as np

PLAIN, LOOKUP, EAGLE3 = "plain", "lookup", "eagle3"


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


def main(genai: Any, tensor: Any, arguments: list[str]) -> None:
    """Answer requests."""
    folder, threads, *way = arguments
    pipeline = load(genai, folder, int(threads), *way)
    print(json.dumps({"version": genai.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(genai, pipeline, tensor, **json.loads(line))), flush=True)


if __name__ == "__main__":
    import openvino
    import openvino_genai

    main(openvino_genai, openvino.Tensor, sys.argv[1:])
