"""Upstream EAGLE's own code: when it is left out, and that where it is installed it writes the target's text."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from c2t.models.loading.load import Pair, load_pair
from c2t.models.target import gguf_target
from c2t.policies.plain import Plain
from c2t.sampling import Sampling
from pipelines.bench import upstream_eagle
from pipelines.bench.contenders import Ours, Task
from pipelines.bench.upstream_eagle import missing, start


def test_why_it_is_left_out(small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_eagle, "python", lambda: tmp_path / "bin" / "python")
    assert f"get it with: {upstream_eagle.HOW_TO_GET}" in missing(small_pair, 1)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert missing(small_pair, 1) is None
    assert missing(small_pair, 2) == "it decodes one text at a time"
    other = SimpleNamespace(draft=None, target=small_pair.target)
    assert missing(other, 1) == "it runs EAGLE-1 heads of Llama targets"
    hub = {"target": ("somebody/target", ""), "draft": ("somebody/head", "")}
    hub_pair = SimpleNamespace(draft=small_pair.draft, target=small_pair.target, sources=hub)
    assert "in a folder each" in missing(hub_pair, 1)


@pytest.mark.slow
@pytest.mark.skipif(not upstream_eagle.python().is_file(), reason="upstream EAGLE is not installed")
@pytest.mark.skipif(not gguf_target.home().is_dir(), reason="the target of smollm2 is not installed")
def test_upstream_writes_the_targets_text() -> None:
    pair = load_pair(gguf_target.PAIR)
    ids = pair.tokenizer("The capital of France is")["input_ids"]
    task = Task(8, Sampling(), pair.target.eos)
    with start(pair) as found:
        [rivals] = found.values()
        assert [one.setting for one in rivals] == ["float32", "bfloat16"]
        written = rivals[0].write([ids], [0], task)
    assert written.tokens == Ours("plain", "", pair, Plain()).write([ids], [0], task).tokens
    assert 0 < written.first < written.seconds
