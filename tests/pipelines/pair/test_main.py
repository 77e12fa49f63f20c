"""The command that builds a pair: which stages it makes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from c2t.errors import InputError
from pipelines.pair import __main__ as entry


def test_one_stage_or_all_of_the_pairs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(entry, "build", lambda recipe, stages, minutes: made.append((recipe.name, stages, minutes)))
    for words in (["tiny", "--stage", "card"], ["tiny-qwen", "--minutes", "2"]):
        assert CliRunner().invoke(entry.app, words, catch_exceptions=False).exit_code == 0
    assert made[0] == ("tiny", ["card"], None)
    name, stages, minutes = made[1]
    assert (name, minutes) == ("tiny-qwen", 2)
    assert stages[0] == "corpus"
    assert not {"all", "card"} & set(stages)


def test_a_pair_without_a_recipe_is_refused() -> None:
    done = CliRunner().invoke(entry.app, ["large"])
    assert done.exit_code == 2
    assert "tiny-small" in done.stderr


def test_smollm2_has_stages_and_places_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[tuple[str, entry.smollm2.Setup]] = []
    stages = {name: lambda places, name=name: made.append((name, places)) for name in entry.smollm2.STAGES}
    monkeypatch.setattr(entry.smollm2, "STAGES", stages)
    words = ["smollm2", "--out", str(tmp_path), "--minutes", "3"]
    for more in (["--stage", "eagle3"], []):
        assert CliRunner().invoke(entry.app, [*words, *more], catch_exceptions=False).exit_code == 0
    assert [name for name, _ in made] == ["eagle3", *stages]
    assert made[0][1] == entry.smollm2.Setup(None, tmp_path, torch.device("cpu"), 3.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["smollm2", "--stage", "tokenizer"], "no stage tokenizer; it has eagle"),
        (["tiny", "--stage", "medusa"], "no stage medusa; it has corpus"),
        (["tiny", "--device", "cpu"], "are for smollm2"),
    ],
)
def test_what_does_not_fit_the_pair_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        CliRunner().invoke(entry.app, words, catch_exceptions=False)
