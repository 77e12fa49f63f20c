"""A loaded machine is refused before anything is measured, in one line and with code 2."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from c2t.errors import InputError
from pipelines import terminal
from pipelines.bench import idle
from pipelines.bench.__main__ import app
from pipelines.bench.idle import LIMIT, Spent, check_idle, load_of_others


def machine(monkeypatch: pytest.MonkeyPatch, busy: float, ours: float) -> None:
    """Two cores for two seconds, which are busy for so many seconds, with this process for so many of them."""
    states: Iterator[Spent] = iter([Spent(100.0, 50.0, 7.0), Spent(104.0, 50.0 + busy, 7.0 + ours)])
    monkeypatch.setattr(idle, "spent", lambda: next(states))
    monkeypatch.setattr(idle.time, "sleep", lambda seconds: None)


def test_the_load_is_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, busy=3.0, ours=1.0)
    assert load_of_others() == 0.5
    machine(monkeypatch, busy=1.0, ours=1.5)  # two clocks
    assert load_of_others() == 0.0


def test_an_idle_machine_passes_and_a_loaded_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, busy=4 * LIMIT / 2, ours=0.0)
    check_idle()
    machine(monkeypatch, busy=4.0, ours=0.0)
    with pytest.raises(InputError, match=r"other processes use 100% of the cores.* less than 5%") as caught:
        check_idle()
    assert "\n" not in str(caught.value)


def test_time_is_counted() -> None:
    before = idle.spent()
    after = before
    while after.ours == before.ours or after.all == before.all:  # the system counts both in ticks
        sum(range(100_000))
        after = idle.spent()
    assert after.ours > before.ours
    assert after.all > before.all
    assert after.busy <= after.all


@pytest.mark.parametrize("words", [["decoding", "--pair", "tiny", "--prompts", "1"], ["forward", "--pair", "tiny"]])
def test_commands_refuse_a_loaded_machine(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, busy=2.0, ours=0.0)
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, InputError)
    with pytest.raises(SystemExit) as ended, terminal.errors_in_one_line("pipelines.bench"):
        raise done.exception
    assert ended.value.code == 2
