"""Wrong input and signals end a pipeline with one line, and its caller's signal handlers come back."""

import signal
from collections.abc import Iterator

import pytest

from c2t.errors import InputError
from c2t.output.signals import Stopped
from pipelines.papers import __main__ as papers
from pipelines.terminal import errors_in_one_line


def test_wrong_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, errors_in_one_line("pipelines.papers"):
        raise InputError("no report is called 'x'")
    assert (ended.value.code, capsys.readouterr().err) == (2, "pipelines.papers: no report is called 'x'\n")


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_one_line(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, errors_in_one_line("pipelines.bench"):
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    name = signal.Signals(number).name
    expected = f"pipelines.bench: stopped by {name}: no file is half-written; run the command again\n"
    assert capsys.readouterr().err == expected
    assert signal.getsignal(number) is before


def test_stopped_papers_say_how_many_reports_are_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    def make(names: list[str], given: dict, done: dict) -> Iterator[None]:
        assert not done
        yield None
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(papers, "make", make)
    monkeypatch.setattr(papers, "show", lambda *_: None)
    with pytest.raises(SystemExit):
        papers.main(reports=["table1", "table2", "figure4"], out=tmp_path / "lines.jsonl")
    [line] = capsys.readouterr().err.splitlines()
    assert f"1 of 3 reports are made and safe in {tmp_path / 'lines.jsonl'}; go on with the same command" in line
