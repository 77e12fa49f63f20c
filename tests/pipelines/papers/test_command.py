"""Scripts of tables and figures share their options."""

import sys
from typing import Annotated, Any

import pytest
import typer

from pipelines.papers import command


def called(monkeypatch: pytest.MonkeyPatch, words: list[str], **settings: Any) -> dict[str, Any]:
    """What a script's work is given for these words of a command line."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(sys, "argv", ["script", *words])
    own = {"size": (Annotated[int, typer.Option(help="Of something.")], 7)}
    with pytest.raises(SystemExit) as stopped:
        command.run(lambda **chosen: given.update(chosen), "What it shows.", own, **settings)
    return given if stopped.value.code == 0 else {"code": stopped.value.code}


def test_what_is_not_said_has_the_scripts_own_default_or_the_studys(monkeypatch: pytest.MonkeyPatch) -> None:
    given = called(monkeypatch, [], limit=5)
    assert (given["limit"], given["temperature"], given["size"]) == (5, 0.4, 7)
    assert given["prompts"] == given["harvest_prompts"] == ()
    assert set(given) == {*command.STUDY, *command.MACHINE, "size"}


def test_words_are_read_as_their_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--prompts", "a.jsonl", "--prompts", "b.jsonl", "--size", "3", "--training", "committed"]
    given = called(monkeypatch, words)
    assert [path.name for path in given["prompts"]] == ["a.jsonl", "b.jsonl"]
    assert (given["size"], given["training"]) == (3, "committed")


@pytest.mark.parametrize("words", [["--training", "mine"], ["--nothing"], ["--limit", "many"]])
def test_words_that_mean_nothing_end_with_2(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    assert called(monkeypatch, words) == {"code": 2}
