"""Drafts of one target against each other: the fastest tree of each, and those that are not here are left out."""

import json
from pathlib import Path

import pytest

from c2t.errors import InputError
from c2t.policies.spec import parse
from pipelines.bench import batches, parallel
from tests.rounding import figure


@pytest.mark.parametrize("tree", parallel.TREES)
def test_every_tree_is_a_policy_without_a_network(tree: str) -> None:
    def none(*_: str) -> None:
        raise AssertionError("no network is asked for")

    assert parse(tree, none).proposal == "ranked"


def test_drafts_that_are_not_here_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parallel, "TREES", parallel.TREES[:2])
    monkeypatch.setattr(parallel, "DRAFTS", ("eagle", "medusa+fit", "eagle+ngrams"))
    monkeypatch.setattr(parallel, "CHOICE_PROMPTS", 1)
    monkeypatch.setattr(batches, "CHOICE_TOKENS", 3)
    file = tmp_path / "lines.jsonl"
    parallel.main("tiny", prompts=1, new_tokens=4, json=file)
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    assert [line["figures"]["contender"] for line in lines] == ["plain", "eagle", "eagle+ngrams"]
    assert lines[0]["figures"]["against_plain"][0] == figure(1)
    assert all(line["figures"]["new_tokens"] == lines[0]["figures"]["new_tokens"] > 0 for line in lines)
    assert "medusa+fit is left out" in capsys.readouterr().err


def test_a_pair_without_an_eagle_head_is_refused() -> None:
    with pytest.raises(InputError, match="nowhere"):
        parallel.entrants("nowhere")
