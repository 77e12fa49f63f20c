"""Trees after long prompts."""

import json
from pathlib import Path

import pytest

from c2t.errors import InputError
from c2t.models.loading.load import load_pair
from c2t.policies.round_costs import Attention
from pipelines.bench import long_texts
from tests.every_policy import toy_costs


def test_every_way_writes_the_text_of_plain_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels, lines = long_texts.JointThreshold().levels, tmp_path / "lines.jsonl"
    monkeypatch.setattr(long_texts, "check_idle", lambda: None)
    monkeypatch.setattr(long_texts, "THRESHOLDS", (0.3, 0.5))
    monkeypatch.setattr(long_texts, "CHOSEN_ON", 1)
    monkeypatch.setattr(long_texts, "costs_of", lambda *_: toy_costs(levels))
    long_texts.main("tiny", lengths="40,64", prompts=1, new_tokens=8, json=lines)
    rows = [json.loads(line)["figures"] for line in lines.read_text().splitlines()]
    assert [row["prefix"] for row in rows] == [40] * 6 + [64] * 6
    assert {row["contender"] for row in rows[:6]} == {row["contender"] for row in rows[6:]}
    assert all(row["equal_to_plain"] == 1 for row in rows)
    settings = {row["contender"]: row["setting"] for row in rows[:6]}
    assert settings[long_texts.FIXED] == settings[long_texts.BEST], "what is best for the shortest prompts"


def test_prompts_have_their_length_and_share_no_text() -> None:
    pair = load_pair("tiny")
    one, other = long_texts.prompts_of(pair, 200, 2)
    assert len(one) == len(other) == 200
    assert one[: -long_texts.END] != other[: -long_texts.END]
    assert long_texts.TASK.strip() in pair.tokenizer.decode(one)
    with pytest.raises(InputError, match="share text"):
        long_texts.prompts_of(pair, 200, 10_000)


def test_lengths_that_the_target_does_not_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "check_idle", lambda: None)
    with pytest.raises(InputError, match=r"--lengths 1000000: .* reads prompts of 33 to \d"):
        long_texts.main("tiny", lengths="40,1000000", new_tokens=8)
    with pytest.raises(InputError, match="--lengths 'long': give numbers"):
        long_texts.main("tiny", lengths="long")


def test_a_repeated_run_counts_and_a_row_costs_more_after_a_longer_prefix() -> None:
    run = list(range(long_texts.REPEATED))
    assert long_texts.repeated(run) == 0
    assert long_texts.repeated(run + run) == 1 / len(run + run)
    costs = toy_costs(2)._replace(attention=Attention(per_verified=0.001))
    assert long_texts.row_price(costs, 100) > long_texts.row_price(costs, 0)
