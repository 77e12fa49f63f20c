"""Conversations: an answer sees what was said before, a pipe gets answers only, Ctrl-C ends an answer and no more."""

import io
import json
import signal
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from c2t.cli import chat
from c2t.cli.app import app
from c2t.cli.chat import Settings, converse
from c2t.cli.stream import TextStream
from c2t.decoder import SpeculativeDecoder
from c2t.decoding import Step
from c2t.errors import InputError
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import load_pair
from c2t.policies import Eagle2

SHORT = Settings(max_new_tokens=12, temperature=0.0, seed=0, rule=None)
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def decoder(small_home: Path, monkeypatch: pytest.MonkeyPatch) -> SpeculativeDecoder:
    """A pair with a chat template."""
    monkeypatch.setenv("C2T_HOME", str(small_home))
    return SpeculativeDecoder(load_pair("llama2-7b", dtype=torch.float64), Eagle2(N=9, K=3, levels=3))


def says(monkeypatch: pytest.MonkeyPatch, lines: str | bytes) -> None:
    """Give these lines as the input, which is a pipe."""
    text = lines.encode() if isinstance(lines, str) else lines
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))


def test_every_line_of_a_pipe_is_a_turn_and_sees_what_was_said_before(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    says(monkeypatch, "a number\n\n  def add\n/exit\nnever read\n")
    said = converse(decoder, "The sum", SHORT)
    assert said.turns == ["The sum", "a number", "def add"]
    for number, answer in enumerate(said.answers):
        ids = conversation(decoder.pair.tokenizer, "llama2", said.turns[: number + 1], said.answers[:number])
        assert decoder.generate([ids], 12).text == answer
    printed = capsys.readouterr()
    assert printed.out == "".join(answer + "\n" for answer in said.answers), "no mark, no figures"
    assert [line.partition(" in ")[0] for line in printed.err.splitlines()] == ["12 tokens"] * 3
    assert (said.total.prompts, said.total.new_tokens) == (3, 36)
    assert decoder.pair.target.prefixes is not None, "a turn need not compute the turns before it"


@pytest.mark.usefixtures("heard")
def test_ctrl_c_ends_an_answer_after_its_round_and_the_conversation_goes_on(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, "")
    whole = converse(decoder, "The sum", SHORT._replace(max_new_tokens=40)).answers[0]
    rounds, shown = [], TextStream.__call__

    def third_round_is_interrupted(self: TextStream, step: Step) -> None:
        shown(self, step)
        rounds.append(step)
        if len(rounds) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TextStream, "__call__", third_round_is_interrupted)
    before = signal.getsignal(signal.SIGINT)
    says(monkeypatch, "a number\n")
    said = converse(decoder, "The sum", SHORT._replace(max_new_tokens=40))
    assert signal.getsignal(signal.SIGINT) is before
    assert len(rounds) > 6, "the second answer is whole"
    written = sum(len(step.by_row()[0][1]) for step in rounds[:3])
    assert said.total.new_tokens == written + 40
    assert 0 < len(said.answers[0]) < len(whole)
    assert whole.startswith(said.answers[0])


def test_sampled_answers_have_one_seed_which_is_shown(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sampled = Settings(max_new_tokens=6, temperature=0.9, top_k=30)
    says(monkeypatch, "a number\n")
    said = converse(decoder, "The sum", sampled)
    assert [line.rpartition("; ")[2] for line in capsys.readouterr().err.splitlines()] == [f"seed {said.seed}"] * 2
    says(monkeypatch, "a number\n")
    assert converse(decoder, "The sum", sampled._replace(seed=said.seed)).answers == said.answers


def test_an_answer_ends_before_a_stop_string_and_the_next_turn_sees_it_so(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    says(monkeypatch, "")
    [whole] = converse(decoder, "The sum", SHORT).answers
    stop = whole[4:7]
    says(monkeypatch, "a number\n")
    capsys.readouterr()
    said = converse(decoder, "The sum", SHORT._replace(stop=(stop,)))
    assert said.answers[0] == whole.partition(stop)[0]
    assert capsys.readouterr().out.startswith(said.answers[0] + "\n")
    ids = conversation(decoder.pair.tokenizer, "llama2", said.turns, said.answers[:1])
    assert said.answers[1] == decoder.generate([ids], 12, stop=stop).text
    assert said.total.new_tokens < 24


def test_a_system_turn_is_the_templates_matter(decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, "")
    with pytest.raises(InputError, match="this one has its own system text"):
        converse(decoder, "The sum", SHORT, system="Be brief.")


def test_a_conversation_that_gets_too_long_is_one_line(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A pipe's ends the command; at a terminal the turn is left out."""
    long = "number " * 400
    says(monkeypatch, f"{long}\n")
    with pytest.raises(InputError, match=r"the conversation has [\d,]+ tokens .* target's 768 positions"):
        converse(decoder, "a number", SHORT)
    turns = iter([long, "def add", "/exit"])
    monkeypatch.setattr(chat, "_interactive", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: next(turns))
    capsys.readouterr()
    assert converse(decoder, None, SHORT).turns == ["def add"]
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("12 tokens")]
    assert [line[:21] for line in lines] == ["/exit or Ctrl-D ends ", "c2t: the conversation"]


def test_what_is_no_text_is_refused(decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, b"\xff\xfe\n")
    with pytest.raises(InputError, match="not UTF-8"):
        converse(decoder, None, SHORT)


@pytest.mark.slow
def test_the_command(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    words = ["generate", "--chat", "--policy", "eagle2:N=9,K=3", "--max-new-tokens", "8", "--dtype", "float64"]
    result = CliRunner().invoke(
        app, [*words, "--pair", "llama2-7b", "--json", str(tmp_path / "j")], input="a number\nhi\n"
    )
    figures = json.loads((tmp_path / "j").read_text())["figures"]
    assert result.exit_code == 0
    assert result.stdout == "".join(answer + "\n" for answer in figures["answers"])
    assert figures["turns"] == ["a number", "hi"]
    for more, line in (
        (["--pair", "llama2-7b", "--raw"], "leave --raw out"),
        (["--pair", "tiny"], "the pair tiny has no chat template"),
    ):
        refused = CliRunner().invoke(app, [*words, *more], input="hi\n")
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
        assert line in refused.stderr
