"""transformers' compiled step: the same text as its plain loop, from one cache for texts of every length that fits."""

import pytest
from transformers import CompileConfig

from c2t.models.loading.load import load_pair
from c2t.sampling import Sampling
from pipelines.bench import contenders
from pipelines.bench.contenders import CACHED, Compiled, Task, Transformers, stock

TASK = Task(6, Sampling(), frozenset())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor takes half a minute."""
    config = CompileConfig(backend="eager", mode=None, dynamic=False)
    monkeypatch.setattr(contenders, "CompileConfig", lambda **_options: config)


def test_a_compiled_step_writes_the_text_of_the_plain_loop() -> None:
    model = stock(load_pair("tiny"), "float32")
    plain, compiled = Transformers("", "", model), Compiled("", "", model)
    for prompt in ([1, 2, 3], [4, 5] * 8, [7]):
        written = compiled.write([prompt], [0], TASK)
        assert written.tokens == plain.write([prompt], [0], TASK).tokens
        assert 0 < written.first < written.seconds
    assert list(compiled.caches) == [CACHED]


def test_a_longer_text_gets_a_longer_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "CACHED", 8)
    model = stock(load_pair("tiny"), "float32")
    plain, compiled = Transformers("", "", model), Compiled("", "", model)
    for prompt in ([1, 2], [3] * 20):
        assert compiled.write([prompt], [0], TASK).tokens == plain.write([prompt], [0], TASK).tokens
    assert list(compiled.caches) == [8, 32]
