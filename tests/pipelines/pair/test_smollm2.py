"""smollm2's questions leave out the bench, its card renders from provenance.json, and a fit learns."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from c2t.drafting.library import WrittenText
from c2t.drafting.rows import rows_of
from c2t.drafting.texts import write
from c2t.errors import InputError
from c2t.models.loading.load import load_pair
from c2t.storage.paths import checkout
from pipelines.pair.smollm2 import build, card, fit
from pipelines.pair.smollm2.questions import RUN, BenchFilter

PAIR = checkout() / "checkpoints" / "smollm2"


def test_bench_questions_are_left_out() -> None:
    bench = "If Ann has 3 apples and Bob has 4 more than Ann, how many apples has Bob?"
    left = BenchFilter([bench])
    assert bench.upper().replace(",", " --") not in left
    assert "apples and Bob has 4 more than Ann" not in left  # a part
    assert f"Tell me. {bench} Say why." not in left
    run = " ".join(bench.split()[:RUN])
    assert f"{run} or so he says to nobody in particular today" not in left
    assert f"{' '.join(bench.split()[: RUN - 1])} or so he says" in left
    assert "" not in left


def test_the_card_renders_and_gets_a_line_for_a_further_training(tmp_path: Path) -> None:
    for name in ("README.md", "provenance.json"):
        shutil.copy(PAIR / name, tmp_path)
    card.write_card(tmp_path)
    assert (tmp_path / "README.md").read_text() == (PAIR / "README.md").read_text()
    known = json.loads((tmp_path / "provenance.json").read_text())
    known["rounds"]["draft"].append({"written": 5, "positions": 31_000_000, "heldout": {"all": 0.7}, "bench": {}})
    (tmp_path / "provenance.json").write_text(json.dumps(known))
    card.write_card(tmp_path)
    assert "\n| 5 | 31,000,000 | 0.700 |  |" in (tmp_path / "README.md").read_text()


def test_a_fit_learns_what_the_marginals_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the texts themselves, which is enough to see it."""
    pair = load_pair("tiny", draft="medusa", dtype=torch.float32)
    asked = [[0, number % 40 + 300, number + 400] for number in range(24)]
    found = write(pair.target, asked, 0.0, 24, 0, frozenset())
    parts = zip(found.ids.split(27), found.best.split(24), found.features.split(27), strict=True)
    texts = [
        WrittenText(ids.int(), 3, best, states[:-1], states[:-1], "", "", 0.0, True) for ids, best, states in parts
    ]
    monkeypatch.setattr(fit, "EPOCHS", 20)
    monkeypatch.setattr(fit, "WARMUP", 5)
    head, tokens, weight = pair.draft.head, torch.arange(8192), pair.target.lm_head.weight
    learned = fit.train_fit(head, pair.target.embed_tokens, tokens, weight, texts)
    guess = fit.guesses(head, rows_of(texts), weight, tokens)
    untrained = fit.new_fit(head, pair.target.embed_tokens, tokens)
    assert fit.cross_entropy(learned, guess) < 0.8 * fit.cross_entropy(untrained, guess)


def test_a_stage_without_texts_or_data_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "load_pair", lambda *_, **__: None)
    setup = build.Setup(None, tmp_path, torch.device("cpu"), 1.0)
    for stage, said in (("eagle", "--data is missing"), ("fit", "no texts to learn from")):
        with pytest.raises(InputError, match=said):
            build.STAGES[stage](setup)
