"""The text that appears round by round is the text, whole characters at a time, in colour what was accepted."""

import re

import pytest

from c2t.cli.stream import TextStream
from c2t.costs.statistics import Statistics
from c2t.decoder import SpeculativeDecoder
from c2t.decoding import Step
from c2t.models.loading.load import Pair, load_pair
from c2t.policies import Eagle2, Plain
from c2t.protocols import Policy

PROMPT = "def read_lines(path):\n    "
GREEN = re.compile("\x1b\\[32m(.*?)\x1b\\[0m", re.DOTALL)
Capture = pytest.CaptureFixture[str]


def streamed(
    pair: Pair, policy: Policy, prompt: str, new: int, capsys: Capture, coloured: bool = False
) -> tuple[list[str], str, Statistics]:
    """Return what each round and the end have printed, the text that generate returns, and its statistics."""
    decoder = SpeculativeDecoder(pair, policy)
    stream, printed = TextStream(decoder, new, before=prompt), []
    stream.coloured = coloured

    def watch(step: Step) -> None:
        stream(step)
        printed.append(capsys.readouterr().out)

    output = decoder.generate(prompt, new, chat=False, watch=watch)
    stream.end()
    return [*printed, capsys.readouterr().out], output.text, output.total


@pytest.fixture(scope="module")
def tiny() -> Pair:
    return load_pair("tiny")


@pytest.mark.parametrize("policy", [Plain(), Eagle2(N=15)], ids=["plain", "eagle2"])
@pytest.mark.parametrize("prompt", [PROMPT, "the price: 3 \u20ac, [red]a\tb"])
def test_its_pieces_are_the_text(tiny: Pair, policy: Policy, prompt: str, capsys: Capture) -> None:
    printed, text, total = streamed(tiny, policy, prompt, 40, capsys)
    assert "".join(printed) == prompt + text + "\n"
    assert len(printed) == 1 + total.rounds + 1, "the prefill, the rounds, and the end"
    assert sum(map(bool, printed)) > 0.8 * len(printed), "as the rounds come, not at the end"


def test_accepted_tokens_are_green_and_others_plain(tiny: Pair, capsys: Capture) -> None:
    assert not GREEN.search("".join(streamed(tiny, Plain(), PROMPT, 24, capsys, coloured=True)[0]))
    printed, text, total = streamed(tiny, Eagle2(N=15), PROMPT, 24, capsys, coloured=True)
    said = "".join(printed)
    assert GREEN.sub(r"\1", said) == PROMPT + text + "\n"
    assert total.accepted_tokens - total.cut <= len(GREEN.findall(said)) <= total.accepted_tokens
    assert total.accepted_tokens > 8


def test_a_character_of_several_tokens_appears_whole(tiny: Pair, capsys: Capture) -> None:
    """Of a text that the target does not write: its tokens are put into the stream one at a time."""
    text = "caf\u00e9 \u20ac \U0001f600 \u65e5\u672c end"
    stream, printed = TextStream(SpeculativeDecoder(tiny, Plain()), 0), []
    for token in tiny.tokenizer(text, add_special_tokens=False).input_ids:
        stream._show(token, accepted=False)
        printed.append(capsys.readouterr().out)
    assert "".join(printed) == text
    assert "" in printed, "some token is a part of a character"
    assert not any("\ufffd" in piece for piece in printed)


def test_a_terminal_is_shown_control_characters_and_does_not_obey_them(tiny: Pair, capsys: Capture) -> None:
    stream = TextStream(SpeculativeDecoder(tiny, Plain()), 0)
    stream.terminal = True
    text = "red \x1b[31m and \x1b]0;title\x07 gone\r\tend\n"
    for token in tiny.tokenizer(text, add_special_tokens=False).input_ids:
        stream._show(token, accepted=False)
    stream.end()
    assert capsys.readouterr().out == "red \\x1b[31m and \\x1b]0;title\\x07 gone\\r\tend\n\n"
