"""The demo of the toy pair, shortened, from the answers to the table."""

import re
from pathlib import Path

import pytest

from c2t.replay.prompts import default_prompts, read_prompts
from pipelines import demo

SHORT = demo.DEMOS["tiny"]._replace(
    prompts=2, new=16, harvest="--limit 6 --max-new-tokens 16 --temperature 0 --k 4 --levels 3"
)


@pytest.mark.slow
@pytest.mark.parametrize("shipped", [True, False])
def test_the_toy_pair_shows_the_same_text_in_fewer_forwards(
    shipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair without a classifier has its answers after the making of one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(demo.DEMOS, "tiny", SHORT)
    if not shipped:
        monkeypatch.setattr(demo, "find", lambda *_: None)
    demo.main("tiny")
    said = capsys.readouterr().out
    titles = ["fewer forwards", "classifier is made", "has not seen"]
    places = [said.index(title) for title in titles]
    assert places == sorted(places) if shipped else places[1] < places[0] < places[2]
    assert len(re.findall("forwards: the same text, [0-9.]+ times the speed", said)) == len(SHORT.questions)
    rows = {line[2:26].strip(): line[26:].split() for line in said.splitlines() if " of 2 " in line}
    assert set(rows) == {demo.PLAIN, *SHORT.compared}
    assert all(cells[:3] == ["2", "of", "2"] for cells in rows.values())
    times = [float(cells[5]) for cells in rows.values()]
    assert times == sorted(times, reverse=True), "the fastest stands first"
    forwards = {label: int(cells[3]) for label, cells in rows.items()}
    plain = forwards.pop(demo.PLAIN)
    assert plain == 2 * SHORT.new
    assert all(others < plain for others in forwards.values())
    assert (tmp_path / demo.CLASSIFIER / "model.safetensors").exists()


def test_every_pair_of_the_demo_has_prompts_and_a_row_with_ngrams() -> None:
    for pair, what in demo.DEMOS.items():
        assert any(label.endswith(demo.NGRAMS) for label in what.compared)
        turns = {prompt.turns[0] for path in default_prompts(pair, "harvest") for prompt in read_prompts(path)}
        assert turns.isdisjoint(what.questions), "the classifier has not seen the questions"
