"""A head's reduced vocabulary against the full one."""

import json
from pathlib import Path

import pytest
import torch

from c2t.costs.statistics import Statistics
from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.replay.lockstep import Continuation
from pipelines.bench import vocabulary
from pipelines.bench.prompt_sets import sets
from pipelines.bench.vocabulary import BARE, FULL, REDUCED
from tests.marks import needs_smollm2
from tests.rounding import figure
from tests.small_pair import TURNS, write_prompts

KNOWN = frozenset({1, 2, 3})
TEXT = Continuation(torch.tensor([1, 7, 2, 3, 7, 8, 1, 8, 2, 2]), torch.zeros(0, 1), prompt=3, end=8, limit=8)


def test_tokens_are_covered_read_before_or_new_and_some_of_them_were_drafted() -> None:
    counted = [Statistics(verified=[9] * len(accepted), accepted=accepted) for accepted in ([1, 1], [0, 0, 3], [4])]
    tokens = vocabulary.tokens_of(TEXT, counted, KNOWN)
    assert tokens.ids == [7, 8, 1, 8]
    assert tokens.covered.tolist() == [False, False, True, False]
    assert tokens.read.tolist() == [True, False, False, True], "7 stands in the prompt, 8 among the new tokens"
    assert tokens.drafted.tolist() == [[True, False, True, False], [False, False, True, True], [True] * 4]


def test_a_band_has_the_shares_of_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "RANKS", (0, 4, 6, 8))
    counted = [Statistics(verified=[9] * len(accepted), accepted=accepted) for accepted in ([1, 1], [0, 0, 3], [4])]
    low, seven, eight = vocabulary.by_rank([vocabulary.tokens_of(TEXT, counted, KNOWN)])
    assert [row["ranks"] for row in (low, seven, eight)] == [[0, 4], [6, 8], [8, 9]]
    assert [row["share"] for row in (low, seven, eight)] == [0.25, 0.25, 0.5]
    assert (low["in_vocabulary"], seven["in_text"], eight["in_text"]) == (1, 1, 0.5)
    assert eight["drafted"] == {REDUCED: 0, BARE: 0.5, FULL: 1}


def test_figures_are_those_of_the_counts() -> None:
    counted = [[Statistics(verified=[9] * 2, accepted=accepted)] * 2 for accepted in ([2, 2], [1, 1], [3, 3])]
    texts = [vocabulary.tokens_of(TEXT, [way[0] for way in counted], KNOWN)] * 2
    row = vocabulary.figures(counted, texts)
    assert [length.estimate for length in row["acceptance_length"].values()] == [3, 2, 4]
    assert [ratio.estimate for ratio in row["over"].values()] == [1, 3 / 2, 3 / 4]
    assert (row["texts"], row["new_tokens"], row["in_vocabulary"], row["in_text"]) == (2, 8, 0.25, 0.5)


def test_a_head_of_the_whole_vocabulary_is_refused(small_pair: Pair) -> None:
    with pytest.raises(InputError, match="no reduced vocabulary"):
        vocabulary.drafts(small_pair.draft, small_pair)


@needs_smollm2
@pytest.mark.slow
def test_every_set_is_counted_and_languages_by_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_prompts(tmp_path / "data" / "mt_bench" / "question.jsonl", TURNS[:2])
    monkeypatch.setattr(vocabulary, "SETS", ("mt_bench", "languages"))
    lines = tmp_path / "lines.jsonl"
    vocabulary.main(tmp_path / "data", prompts=2, new_tokens=6, json=lines)
    rows = [json.loads(line)["figures"] for line in lines.read_text().splitlines()]
    languages = [kind for kind, _ in sets.MADE["languages"]()[:2]]
    named = [(row["set"], row["kind"]) for row in rows if "set" in row]
    assert named == [("mt_bench", ""), ("languages", ""), *(("languages", kind) for kind in languages)]
    assert sum(row["share"] for row in rows if "ranks" in row) == figure(1.0)


@needs_smollm2
def test_all_three_ways_have_one_head() -> None:
    pair = load_pair("smollm2", draft="eagle")
    ways = vocabulary.drafts(pair.draft, pair)
    assert ways[FULL].vocabulary is None
    assert ways[FULL].head.layers is pair.draft.head.layers
    assert ways[BARE].session().oov is None
    assert ways[BARE].vocabulary is ways[REDUCED].vocabulary
    assert ways[REDUCED].session().oov is not None
    assert ways[REDUCED].head.tokens is not None, "a copy was changed"
