"""Continue prompts with upstream EAGLE's own code, in an environment that has `eagle-llm` and what it needs.

    build/eagle/bin/python upstream_eagle_worker.py TARGET HEAD THREADS DTYPE

Reads a request as a line of JSON from stdin, and writes its answer as a line to stdout, until stdin ends; see
`pipelines.bench.programs`. The package knows rotary positions of base 10,000 only and tokenizers of its time: both are
set from here, and nothing else of it is changed.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from eagle.model import cnets, ea_model, modeling_llama_kv
from safetensors.torch import load_file

OLD_BASE = 10_000  # base of all rotary embeddings of the package


def load(target: Path, head: Path, dtype: torch.dtype) -> Any:
    """Return upstream's model of a target and an EAGLE-1 head whose embedding is the target's."""
    config = json.loads((target / "config.json").read_text())
    base = config.pop("rope_parameters")["rope_theta"]
    for module in (cnets, modeling_llama_kv):
        made = module.LlamaRotaryEmbedding.__init__
        made.__defaults__ = tuple(base if value == OLD_BASE else value for value in made.__defaults__)
    eos = SimpleNamespace(eos_token_id=config["eos_token_id"])
    ea_model.AutoTokenizer = SimpleNamespace(from_pretrained=lambda _: eos)
    weights = load_file(head / "model.safetensors")
    weights["embed_tokens.weight"] = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    with tempfile.TemporaryDirectory() as folder:
        torch.save({name: weight.to(dtype) for name, weight in weights.items()}, f"{folder}/pytorch_model.bin")
        os.symlink(head / "config.json", f"{folder}/config.json")
        os.mkdir(f"{folder}/target")
        os.symlink(target / "model.safetensors", f"{folder}/target/model.safetensors")
        Path(folder, "target", "config.json").write_text(json.dumps({**config, "rope_scaling": None}))
        return ea_model.EaModel.from_pretrained(
            base_model_path=f"{folder}/target", ea_model_path=folder, torch_dtype=dtype
        ).eval()


def answer(model: Any, prompt: list[int], limit: int, eos: list[int], temperature: float, seed: int) -> dict[str, Any]:
    """Continue a prompt on a clock, by upstream's own loop and tree. The first token comes with the first tree."""
    torch.manual_seed(seed)
    prefill, first = initialize_tree, 0.0

    def noted(*arguments: Any) -> Any:
        nonlocal first
        tree = prefill(*arguments)
        first = time.perf_counter() - start
        return tree

    ea_model.initialize_tree = noted
    start, tokens = time.perf_counter(), []
    for ids in model.ea_generate(torch.tensor([prompt]), temperature=temperature):
        tokens = ids[0, len(prompt) :].tolist()
        if len(tokens) >= limit or not set(eos).isdisjoint(tokens):
            break
    seconds = time.perf_counter() - start
    ends = [index + 1 for index, token in enumerate(tokens) if token in eos]
    return {"tokens": tokens[: min([limit, *ends])], "first": first, "seconds": seconds}


if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr  # the package prints, and stdout is for the answers
    target, head, threads, dtype = sys.argv[1:]
    torch.set_num_threads(int(threads))
    initialize_tree = ea_model.initialize_tree
    model = load(Path(target).resolve(), Path(head).resolve(), getattr(torch, dtype))
    print("{}", file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(model, **json.loads(line))), file=out, flush=True)
