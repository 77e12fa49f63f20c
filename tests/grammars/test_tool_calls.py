"""Tool calls: grammars allow the frame of each family of templates and nothing else; texts are read back in pieces."""

import json
from dataclasses import replace
from typing import Any

import pytest

from c2t.errors import InputError
from c2t.grammars import tool_calls
from c2t.grammars.tool_calls import FRAME, LLAMA, CallReader, ToolFrame, frame_of
from c2t.models.loading.load import Pair

TOOLS = [
    {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"$ref": "#/$defs/unit"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"unit": {"enum": ["C", "F"]}},
        },
    },
    {"name": "now"},
]
HERMES = frame_of(r"{% if tools %}<tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}\n</tool_call>")
MISTRAL = frame_of("{% if tools %}[TOOL_CALLS] [{{ calls }}]")
FRAMES = {"own": FRAME, "hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL}
CALLS = [("weather", {"city": 'St. "}]{" \\ \u00e9', "unit": "C"}), ("now", {})]


def allowed(pair: Pair, frame: ToolFrame, text: str, required: bool, answer: str | None = None) -> int:
    """Return how many characters of a text the grammar allows, by the library; -1 for a text that may not end."""
    llguidance = pytest.importorskip("llguidance")
    tokenizer = llguidance.LLTokenizer(pair.tokenizer.backend_tokenizer.to_str(), eos_token=0)
    matcher = llguidance.LLMatcher(tokenizer, frame.grammar(TOOLS, required, answer), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.tokenize_str(text, parse_special=True)
    taken = matcher.try_consume_tokens(ids)
    whole = taken == len(ids)
    return len(text) if whole and matcher.is_accepting() else -1 if whole else len(tokenizer.decode_str(ids[:taken]))


def read(frame: ToolFrame, pieces: list[str], free: bool = True) -> tuple[str, list[tuple[str, str]]]:
    """Return what is said in a text, and its calls."""
    reader, said, calls = CallReader(frame, free), "", []
    for piece in [*(part for text in pieces for part in reader.add(text)), *reader.end()]:
        if isinstance(piece, str):
            said += piece
        elif piece.name is not None:
            assert piece.number == len(calls)
            calls.append((piece.name, piece.arguments))
        else:
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.arguments)
    return said, calls


@pytest.mark.parametrize("name", [name for name in FRAMES if FRAMES[name].opening])
def test_a_text_is_calls_or_an_answer_in_its_form(small_pair: Pair, name: str) -> None:
    frame = FRAMES[name]
    schema = json.dumps({"type": "array", "items": {"enum": [frame.opening + "{"]}})
    answer, call = json.dumps([frame.opening + "{"], ensure_ascii=False), frame.written(CALLS[:1])
    wanted = [(called, json.dumps(a, ensure_ascii=False)) for called, a in CALLS[:1]]
    for text, found in ((answer, (answer, [])), (call, ("", wanted))):
        assert allowed(small_pair, frame, text, False, schema) == len(text)
        for pieces in ([text], list(text)):
            assert read(frame, pieces, free=False) == found
    assert allowed(small_pair, frame, "Let me look." + call, False, schema) == 0
    for length in range(call.index('"arguments"')):  # max_tokens may cut anywhere: no part of a frame is said
        begun = call[:length] if call[:length] == "[" else ""  # which may be an answer's, too
        assert read(frame, list(call[:length]), free=False) == (begun, [])


@pytest.mark.parametrize("name", FRAMES)
def test_calls_are_allowed_and_read_back(small_pair: Pair, name: str) -> None:
    frame = FRAMES[name]
    calls = CALLS if frame.between else CALLS[:1]
    text, wanted = frame.written(calls), [(called, json.dumps(a, ensure_ascii=False)) for called, a in calls]
    assert allowed(small_pair, frame, text, required=True) == len(text)
    for before in ("", "Let me look.\n") if frame.opening else ("",):
        assert allowed(small_pair, frame, before + text, required=False) == len(before + text)
        for pieces in ([before + text], list(before + text)):
            assert read(frame, pieces) == (before, wanted)
    free = f"So be it: {frame.opening[:5]} or {{not}}"
    assert allowed(small_pair, frame, free, required=False) == len(free)
    assert allowed(small_pair, frame, free, required=True) < len(free)
    assert read(frame, list(free)) == (free, [])
    unfinished = text[: text.index("St.") + 3]
    assert allowed(small_pair, frame, unfinished, required=False) == -1
    assert read(frame, list(unfinished)) == ("", [("weather", '{"city": "St.')])
    for length in range(len(frame.opening), text.index(frame.arguments_key)):
        assert read(frame, list(text[:length])) == ("", [])


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("wrong", ['{"name": "other"', '{"name":"now"', '{"name": "weather", "KEY": {"unit"', "text"])
def test_nothing_else_is_a_call(small_pair: Pair, name: str, wrong: str) -> None:
    frame = FRAMES[name]
    text = frame.opening + wrong.replace("KEY", frame.arguments_key)
    assert 0 <= allowed(small_pair, frame, text, required=True) < len(text)


def test_one_call_is_all_without_between(small_pair: Pair) -> None:
    frame = replace(FRAME, between="")
    text = frame.written(CALLS[:1])
    assert allowed(small_pair, frame, text, required=True) == len(text)
    assert allowed(small_pair, frame, text + "\n", required=True) == len(text)
    assert allowed(small_pair, FRAME, text + "\n<tool_", required=True) == -1
    assert read(frame, list(text)) == ("", [("weather", json.dumps(CALLS[0][1], ensure_ascii=False))])


def test_a_frame_of_special_tokens_is_those_tokens(small_pair: Pair) -> None:
    """Spelled in letters it would be another text to the model."""
    tokenizer = small_pair.tokenizer
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    backend.add_tokens(["<tool_call>", "</tool_call>"])
    added = {name: backend.token_to_id(name) for name in ("<tool_call>", "</tool_call>")}
    frame = HERMES.tokenized(added, special=[])
    assert dict(frame.specials) == added
    for free in (True, False):
        assert read(frame, ["<tool_call>"], free) == ("", []), "a token that begins nothing else"
    assert FRAME.tokenized({"<other>": 5}, special=["<other>"]) == FRAME
    llguidance = pytest.importorskip("llguidance")
    library = llguidance.LLTokenizer(backend.to_str(), eos_token=0)
    for required in (False, True):
        matcher = llguidance.LLMatcher(library, frame.grammar(TOOLS, required), log_level=0)
        ids = backend.encode(frame.written(CALLS), add_special_tokens=False).ids
        assert set(added.values()) <= set(ids)
        assert matcher.try_consume_tokens(ids) == len(ids), matcher.get_error()
        assert matcher.is_accepting()


def test_frames_are_those_of_the_templates() -> None:
    assert (HERMES.opening, HERMES.closing) == ("<tool_call>\n", "\n</tool_call>")
    assert frame_of("tools <tool_call>{") == FRAME
    assert frame_of('tools {"name": function name, "parameters": dictionary}') == LLAMA
    assert frame_of("tools [TOOL_CALLS][{").opening == "[TOOL_CALLS]["
    for template in ("<tool_call>{", "tools <tool_call>\\n<function=", "tools [TOOL_CALLS]name[ARGS]", "tools", ""):
        assert frame_of(template) is None


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([{"name": "a b"}], "a name is 1 to 64 of the characters"),
        ([{"name": "a" * 65}], "a name is 1 to 64 of the characters"),
        ([{"name": "a"}, {"name": "a"}], "two of them have the name 'a'"),
        (
            [{"name": "a", "parameters": {"type": "array"}}],
            "the parameters of a must be an object's schema, not 'array'",
        ),
    ],
)
def test_tools_that_no_grammar_can_have_are_named(tools: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InputError, match=f"tools: {said}"):
        FRAME.grammar(tools, required=True)


@pytest.mark.parametrize("text", ['<tool_call>{"nom": 1}</tool_call>', "<tool_call>now</tool_call>"])
def test_what_follows_no_grammar_is_not_lost_silently(text: str) -> None:
    said, calls = read(FRAME, list(text))
    assert (said, calls) == (text.removeprefix("<tool_call>"), [])
    assert tool_calls.MOST_CALLS == 16
