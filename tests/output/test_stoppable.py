"""Stop strings: the text ends before the first of them, however its tokens come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.output.stoppable import StoppableText, checked_stops

WORDS = "def add(a, b):\n    return a + b \u20ac\n\nThe sum of two numbers"


def written(tokenizer: object, tokens: list[int], stop: list[str], sizes: list[int]) -> tuple[str, int, bool]:
    """Return a text that comes in parts of these sizes, its number of tokens, and whether it was stopped."""
    text, shown, rest = StoppableText(tokenizer, stop), "", list(tokens)
    for size in [*sizes, len(tokens)]:
        part, rest = rest[:size], rest[size:]
        shown += text.add(part)
        assert not any(one in shown for one in stop), "nothing of it was ever shown"
    return shown + text.end(), text.tokens, text.stopped


@given(data=st.data())
def test_the_text_ends_before_the_first_stop_string_in_parts_of_any_size(small_pair: Pair, data: st.DataObject) -> None:
    tokenizer = small_pair.tokenizer
    tokens = tokenizer.encode(WORDS, add_special_tokens=False)
    start = data.draw(st.integers(0, len(WORDS) - 1))
    stop = data.draw(
        st.lists(st.sampled_from([WORDS[start : start + 3], "return", "\u20ac", "nowhere", "\n\n", "a"]), max_size=4)
    )
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=30))
    text, count, stopped = written(tokenizer, tokens, stop, sizes)
    assert (text, count, stopped) == written(tokenizer, tokens, stop, [1] * len(tokens))
    ends = [WORDS.find(one) for one in stop if one in WORDS]
    assert stopped == bool(ends)
    if not stopped:
        assert (text, count) == (WORDS, len(tokens))
        return
    # A token that completes two of them ends the text at the earlier one; of two tokens the first one counts.
    assert WORDS.startswith(text)
    assert any(WORDS[len(text) :].startswith(one) for one in stop)
    assert not any(one in tokenizer.decode(tokens[: count - 1]) for one in stop)


def test_what_may_begin_a_stop_string_is_shown_when_it_does_not(small_pair: Pair) -> None:
    tokenizer = small_pair.tokenizer
    text = StoppableText(tokenizer, ["return b"])
    shown = [text.add([token]) for token in tokenizer.encode("a return a", add_special_tokens=False)]
    assert "".join(shown) + text.end() == "a return a"
    assert "return" not in shown[0]


def test_an_unfinished_character_is_shown_at_the_end(small_pair: Pair) -> None:
    [token] = small_pair.tokenizer.encode("\u20ac", add_special_tokens=False)[:1]
    text = StoppableText(small_pair.tokenizer)
    assert text.add([token]) == ""
    assert text.end() == "\ufffd"


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ("", "an empty stop string"),
        (["a", ""], "an empty stop string"),
        (["a"] * 100_000, "100,000 stop strings: give at most 64"),
        ("a" * 1025, "1,025 characters; give at most 1,024"),
        ([5], "a stop string = 5 must be a text"),
        (5, "stop = 5 must be a text or a list of texts"),
    ],
    ids=range(6),
)
def test_what_stops_no_text_is_refused(stop: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        checked_stops(stop)
    assert checked_stops("a") == checked_stops(["a"]) == ("a",)
