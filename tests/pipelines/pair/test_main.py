"""The command that builds a pair: which stages it makes."""

from typing import Any

import pytest
from typer.testing import CliRunner

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
