"""transformers with a compiled step: the text of its plain loop, and no compilation on the clock."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.fx import GraphModule
from transformers.generation import CompileConfig

from c2t.models.loading.load import load_pair
from c2t.sampling import Sampling
from pipelines.bench import contenders
from pipelines.bench.contenders import CACHED, Compiled, Task, Transformers, stock

TASK = Task(6, Sampling(), frozenset({0}))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GraphModule]]:
    """Steps that were compiled, without Inductor's minute for each. The clock counts them instead of seconds."""
    steps: list[GraphModule] = []

    def backend(step: GraphModule, _: list[torch.Tensor], **options: object) -> object:
        steps.append(step)
        return step.forward

    monkeypatch.setattr(contenders, "CompileConfig", partial(CompileConfig, backend=backend))
    monkeypatch.setattr(contenders, "time", SimpleNamespace(perf_counter=lambda: float(len(steps))))
    torch.compiler.reset()
    yield steps
    torch.compiler.reset()


def test_a_step_is_compiled_once_for_each_length_of_a_cache(graphs: list[GraphModule]) -> None:
    pair = load_pair("tiny")
    plain = Transformers("", "", stock(pair, "float32"))
    compiled = Compiled("", "", stock(pair, "float32"))
    prompts = [[5 + number % 7 for number in range(length)] for length in (9, CACHED - TASK.max_new_tokens, 1, CACHED)]
    for prompt, steps, caches in zip(prompts, (1, 1, 1, 2), (1, 1, 1, 2), strict=True):
        written = compiled.write([prompt], [0], TASK)
        assert written.tokens == plain.write([prompt], [0], TASK).tokens
        assert (written.seconds, len(graphs), len(compiled.caches)) == (0, steps, caches)
    assert sorted(compiled.caches) == [CACHED, 2 * CACHED]
