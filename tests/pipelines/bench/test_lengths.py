"""Acceptance length by the length of prompts."""

import json
from pathlib import Path

import pytest

from c2t.costs.statistics import Statistics
from c2t.errors import InputError
from pipelines.bench import lengths


def test_every_draft_is_counted_after_every_length(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lengths.main("tiny", lengths="40,64", prompts=2, new_tokens=6, json=lines)
    rows = [json.loads(line)["figures"] for line in lines.read_text().splitlines()]
    ways = lengths.HEAD, lengths.NGRAMS_ALONE, lengths.BOTH
    assert [(row["prefix"], row["way"]) for row in rows] == [(size, way) for size in (40, 64) for way in ways]
    assert min(row["acceptance_length"][0] for row in rows) >= 1


def test_an_acceptance_length_counts_the_bonus_token() -> None:
    counted = [Statistics(verified=[9] * len(accepted), accepted=accepted) for accepted in ([1, 2], [0])]
    assert lengths.acceptance_length(counted).estimate == 2


def test_lengths_that_the_target_does_not_read_are_refused() -> None:
    with pytest.raises(InputError, match="--lengths 1000000: "):
        lengths.main("tiny", lengths="40,1000000", new_tokens=8)
