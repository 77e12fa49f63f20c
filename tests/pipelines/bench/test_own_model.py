"""Ways to decode a model of one's own, in turns on the same prompts."""

import json
from pathlib import Path

import pytest

from c2t.storage.paths import find
from pipelines.bench import own_model
from tests.small_pair import TURNS, write_prompts


def test_every_way_writes_the_text_of_plain_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_model, "TREES", ("chain:length=2",))
    monkeypatch.setattr(own_model, "ROUNDS", own_model.ROUNDS[:1])
    monkeypatch.setattr(own_model, "CHOSEN_ON", 1)
    prompts, lines = write_prompts(tmp_path / "prompts.jsonl", TURNS[:3]), tmp_path / "lines.jsonl"
    target, head = (str(find("tiny", part)) for part in ("target", "draft"))
    own_model.main(target, [prompts], [head], prompts=1, new_tokens=6, dtype="float32", json=lines)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    names = [row["figures"]["contender"] for row in rows]
    assert names[:2] == [own_model.PLAIN, own_model.COPIES]
    assert names[-1] == "tiny", "a head is called after the folder that it lies in"
    assert all(row["figures"]["equal_to_plain"] == 1 for row in rows)
    assert rows[-1]["figures"]["setting"].startswith("chain:length=2")
