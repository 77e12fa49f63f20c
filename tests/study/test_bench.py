"""A bench compares policies on the same texts; its figures are those of the evaluation, its line is JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from c2t.cli import reports
from c2t.costs.statistics import total
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.policies import MCSD, Eagle2, MCSDPlus, Plain
from c2t.replay.prompts import Prompt
from c2t.sampling import Sampling
from c2t.storage.results import append_line, result_line
from c2t.study import bench as benchmark
from c2t.study.bench import BenchSettings, bench, configuration, figures
from c2t.study.evaluate import evaluate
from tests.rounding import figure
from tests.small_pair import TURNS

PROMPTS = [Prompt(i, ("known", "heldout")[i % 2], [turn], "f") for i, turn in enumerate(TURNS[:6])]
POLICIES = [Eagle2(K=4, levels=3, N=12), Plain()]
SETTINGS = BenchSettings(max_new_tokens=12, limit=None, timed=2)


@pytest.fixture(scope="module")
def result(small_pair: Pair) -> benchmark.Bench:
    return bench(small_pair, POLICIES, PROMPTS, SETTINGS)


def test_rows_are_what_the_evaluation_counts(small_pair: Pair, result: benchmark.Bench) -> None:
    ids = [small_pair.tokenizer(prompt.turns[0]).input_ids for prompt in PROMPTS]
    statistics = evaluate(small_pair, POLICIES[0], ids, max_new_tokens=12, sampling=Sampling(SETTINGS.temperature))
    expected, row = total(statistics), result.rows[0]
    assert row.policy.startswith("eagle2:K=4,levels=3,N=12,M=0")
    assert (row.total.tau, row.total.verified_tokens, row.total.rounds) == (
        expected.tau,
        expected.verified_tokens,
        expected.rounds,
    )
    assert row.total.verified_tokens == 12 * row.total.rounds
    assert row.total.tau_with_bonus == row.total.tau + 1
    assert row.categories == {"heldout": total(statistics[1::2]).tau, "known": total(statistics[::2]).tau}
    assert result.rows[1].total.tau == result.rows[1].total.draft_passes == 0
    assert result.rows[1].total.verified_tokens == result.rows[1].total.rounds


def test_alpha_is_tau_as_a_share_of_the_longest_draft(small_pair: Pair) -> None:
    """Of MCSD+ too, whose first level is the target's; not where drafts have no one length."""
    policies = [MCSDPlus(W=2, D=3), MCSD((2, 1)), *POLICIES]
    found = bench(small_pair, policies, PROMPTS[:2], BenchSettings(max_new_tokens=8, temperature=0.0, timed=0))
    forks, config, *others = found.rows
    assert (forks.exact, forks.rule, config.exact) == (False, "longest-fork", True)
    assert forks.alpha == forks.total.tau / 3 > 0
    assert config.alpha == config.total.tau / 2
    assert [row.alpha for row in others] == [None, None]
    table = reports.bench_table(found)
    column = table.columns.index("alpha")
    assert [row[column] for row in table.rows] == [f"{forks.alpha:.2f}", f"{config.alpha:.2f}", "-", "-"]
    assert "not exact: " in reports.bench_remarks(found)


def test_speeds_are_ratios_of_one_run(result: benchmark.Bench) -> None:
    for row in result.rows:
        assert row.against_plain == figure(row.tokens_per_second / result.plain_tokens_per_second)
        assert row.against_hf == figure(row.tokens_per_second / result.hf_tokens_per_second)
    assert result.rows[1].against_plain == 1


@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_plain_decoding_is_timed_even_if_not_asked_for(small_pair: Pair, temperature: float) -> None:
    settings = BenchSettings(max_new_tokens=4, temperature=temperature, limit=2, timed=1, live=True)
    done: list[tuple[int, int, str]] = []
    found = bench(small_pair, POLICIES[:1], PROMPTS, settings, lambda *counts: done.append(counts))
    assert found.rows[0].against_plain > 0
    assert found.looping is None
    assert done[0] == (0, 3, "")
    assert done[-1] == (3, 3, "times")
    assert "one prompt at a time, 2 prompts" in reports.bench_remarks(
        found._replace(settings=replace(settings, timed=5))
    )


def test_live_counts_are_the_replayed_ones(small_pair: Pair, result: benchmark.Bench) -> None:
    live = bench(small_pair, POLICIES, PROMPTS, BenchSettings(max_new_tokens=12, limit=None, timed=0, live=True))
    for ours, theirs in zip(live.rows, result.rows, strict=True):
        assert ours._replace(tokens_per_second=0, against_plain=0, against_hf=0) == theirs._replace(
            tokens_per_second=0, against_plain=0, against_hf=0
        )
    assert live.plain_tokens_per_second is None
    assert "tokens/s" not in reports.bench_table(live).columns


def test_too_long_prompts_are_counted_and_all_too_long_ones_refused(small_pair: Pair) -> None:
    long = Prompt(9, "", ["number " * 800], "f")
    settings = BenchSettings(max_new_tokens=4, timed=0)
    found = bench(small_pair, POLICIES, [long, *PROMPTS[:1]], settings)
    assert (found.prompts, found.skipped) == (1, 1)
    assert "1 turns left out" in reports.bench_remarks(found)
    with pytest.raises(InputError, match="longer than"):
        bench(small_pair, POLICIES, [long], settings)


def test_table_and_line(small_pair: Pair, result: benchmark.Bench, tmp_path: Path) -> None:
    table = reports.bench_table(result)
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert table.rows[0][0] == "eagle2:K=4,levels=3,N=12"
    append_line(
        tmp_path / "new" / "lines.jsonl",
        result_line("bench", figures(result), configuration(small_pair, SETTINGS, ["a/code.jsonl"], "tiny")),
    )
    append_line(tmp_path / "new" / "lines.jsonl", "{}")
    first, second = (tmp_path / "new" / "lines.jsonl").read_text().splitlines()
    line = json.loads(first)
    assert second == "{}"
    assert line["figures"]["rows"][0]["tau"] == result.rows[0].total.tau
    assert line["configuration"]["prompts"] == ["code.jsonl"]
    assert {"torch", "transformers", "commit", "hardware"} <= line.keys()
    with pytest.raises(InputError, match="cannot write results"):
        append_line(tmp_path, "{}")


@pytest.mark.parametrize("wrong", [{"max_new_tokens": 0}, {"limit": 0}, {"timed": -1}])
def test_settings_are_checked(wrong: dict) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        BenchSettings(**wrong)
