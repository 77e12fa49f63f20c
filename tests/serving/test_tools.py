"""Tools by OpenAI's client: calls, their results, and streams, in a pair's own form and in ours."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import load_pair
from c2t.policies import Eagle2
from tests.serving.served import client, serving, with_template

pytest.importorskip("llguidance")
PLAIN = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
# Reads tools as Hermes does, and shows what it gets.
HERMES = """{% for t in tools or () %}{{ t | tojson }}{% endfor %}<tool_call>
{"name": NAME, "arguments": {}}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or () %}
<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>{% endfor %}
{% endfor %}"""
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
ASKED = [{"role": "user", "content": "How is it in Oslo?"}]
DESCRIBED = """\
You can call tools. Each line between <tools> and </tools> describes one, with the schema of its arguments:
<tools>
{"name": "weather", "description": "The weather.", "parameters": %s}
{"name": "now"}
</tools>
To call one, answer with its name and arguments in this form:
<tool_call>{"name": NAME, "arguments": {...}}</tool_call>
"""


def decoder_with(template: str) -> SpeculativeDecoder:
    return SpeculativeDecoder(with_template(load_pair("tiny"), template), Eagle2(K=3, levels=3, N=8))


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return decoder_with(PLAIN)


def chat(ai: OpenAI, **fields: Any) -> Any:
    settings = {"model": "tiny", "messages": ASKED, "tools": TOOLS, "max_tokens": 120, "temperature": 0.0}
    return ai.chat.completions.create(**settings | fields)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("template", [PLAIN, HERMES], ids=["ours", "the template's"])
def test_a_call_is_an_answer(template: str) -> None:
    with serving(decoder_with(template)) as server:
        ai = client(server)
        answer = chat(ai, tool_choice=named("weather")).choices[0]
        [call] = answer.message.tool_calls
        assert (answer.finish_reason, answer.message.content) == ("stop", None), "as OpenAI ends a tool that was named"
        assert (call.type, call.function.name, len(call.id)) == ("function", "weather", 9)
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        required = chat(ai, tool_choice="required", parallel_tool_calls=False).choices[0]
        assert required.finish_reason == "tool_calls"
        assert {call.function.name for call in required.message.tool_calls} <= {"weather", "now"}
        cut = chat(ai, tools=TOOLS[:1], tool_choice="required", stop=["Rom", "Osl"]).choices[0]
        assert (cut.finish_reason, cut.message.content) == ("stop", None), "no call that a client would read"
        assert cut.message.tool_calls[0].function.arguments == '{"city": "'
        early = chat(ai, tools=TOOLS[:1], tool_choice="required", max_tokens=2).choices[0]
        assert (early.finish_reason, early.message.content, early.message.tool_calls) == ("length", "", None)
        free = chat(ai, tool_choice="none").choices[0]
        assert free.message.tool_calls is None
        assert chat(ai, tools=[]).choices[0].message.content == free.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_the_limit_of_tokens_may_end_a_text_inside_of_a_call(ai: OpenAI, stream: bool) -> None:
    fields: dict[str, Any] = {"tool_choice": named("weather"), "seed": 4, "stream": stream}
    whole = chat(ai, **fields | {"stream": False})
    [call] = whole.choices[0].message.tool_calls
    texts, reasons = [], []
    for most in range(1, whole.usage.completion_tokens):
        answer = chat(ai, **fields, max_tokens=most)
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        parts = [choice.delta if stream else choice.message for choice in choices]
        calls = [call for part in parts for call in part.tool_calls or ()]
        texts.append("".join(call.function.arguments for call in calls))
        reasons.append(choices[-1].finish_reason)
    assert reasons == ["length"] * len(reasons)
    assert texts[-1] == call.function.arguments
    assert all(call.function.arguments.startswith(text) for text in texts)
    assert '{"city": "' in texts


def test_a_stream_brings_the_name_first_and_arguments_in_pieces(ai: OpenAI) -> None:
    fields: dict[str, Any] = {"tool_choice": "required", "seed": 4, "temperature": 1.0}
    whole = chat(ai, **fields).choices[0]
    calls: list[dict[str, str]] = []
    reasons = []
    for chunk in chat(ai, **fields, stream=True):
        [choice] = chunk.choices
        reasons.append(choice.finish_reason)
        for part in choice.delta.tool_calls or ():
            if part.function.name is not None:
                assert part.index == len(calls)
                assert part.id
                calls.append({"name": part.function.name, "arguments": ""})
            calls[part.index]["arguments"] += part.function.arguments
        assert not choice.delta.content
    assert calls == [call.function.model_dump() for call in whole.message.tool_calls]
    assert reasons == [None] * (len(reasons) - 1) + [whole.finish_reason]
    single = fields | {"parallel_tool_calls": False}
    with ai.chat.completions.stream(
        model="tiny", messages=ASKED, tools=TOOLS, max_tokens=120, extra_body=single
    ) as stream:
        last = stream.get_final_completion().choices[0]
    assert (last.finish_reason, len(last.message.tool_calls)) == ("tool_calls", 1)


LLAMA = 'Respond in the format {"name": function name, "parameters": dictionary}. {{ tools }}{{ messages }}'
SAYS = {"type": "object", "properties": {"says": {"const": "<tool_call>{}"}}, "required": ["says"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {**SAYS, "additionalProperties": False}}}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_a_call_or_follows_its_format(ai: OpenAI, decoder: SpeculativeDecoder, stream: bool) -> None:
    """Also where its text looks like a call."""
    opening = decoder.pair.tokenizer("<tool_call>", add_special_tokens=False).input_ids[0]
    for more, (calls, text) in (
        ({"logit_bias": {str(opening): 100}}, (True, "")),
        ({"logit_bias": {str(opening): -100}}, (False, '{"says": "<tool_call>{}"}')),
        ({"tool_choice": "required"}, (True, "")),
    ):
        answer = chat(ai, response_format=FORMAT, stream=stream, parallel_tool_calls=False, **more)
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        parts = [choice.delta if stream else choice.message for choice in choices]
        assert "".join(part.content or "" for part in parts) == text
        assert any(part.tool_calls for part in parts) == calls
        assert choices[-1].finish_reason == ("tool_calls" if calls else "stop")


def test_a_format_beside_calls_that_look_like_it_is_refused() -> None:
    with serving(decoder_with(LLAMA)) as server:
        with pytest.raises(openai.BadRequestError, match="looks like an answer in JSON") as error:
            chat(client(server), response_format=FORMAT)
        assert error.value.param == "tools"
        assert chat(client(server), response_format=FORMAT, tool_choice="required").choices[0].message.tool_calls


@pytest.mark.parametrize("template", [PLAIN, HERMES], ids=["ours", "the template's"])
def test_calls_and_results_are_read(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is the one that the template makes; ours describes the tools in the system message."""
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    said = [
        {"role": "developer", "content": "Be brief."},
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "rain"}]},
    ]
    decoder = decoder_with(template)
    with serving(decoder) as server:
        generate, prompts = server.front.generate, []

        def noted(ids: list[int], *settings: Any, **more: Any) -> Any:
            prompts.append(ids)
            return generate(ids, *settings, **more)

        monkeypatch.setattr(server.front, "generate", noted)
        chat(client(server), messages=said, max_tokens=2)
    text = decoder.pair.tokenizer.decode(prompts[0])
    if template == PLAIN:
        system = "system: Be brief.\n\n" + DESCRIBED % json.dumps(CITY)
        called = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
        turns = f"user: {ASKED[0]['content']}\nassistant: {called}\nuser: <tool_response>rain</tool_response>\n"
        assert text == system + turns
    else:
        assert text.startswith('{"type": "function", "function": {"name": "weather", "description": "The weather.", ')
        assert text.endswith('assistant: <tool_call>weather{"city": "Oslo"}</tool_call>tool: rain')


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "a name is 1 to 64"),
        ({"tools": [{"type": "search"}]}, "tools", "tools.0"),
        ({"tools": [TOOLS[1]] * 129}, "tools", "at most 128"),
        ({"tools": [TOOLS[1]] * 2}, "tools", "two of them have the name 'now'"),
        ({"tool_choice": named("other")}, "tool_choice", "tools has none with the name 'other'"),
        ({"tool_choice": "always"}, "tool_choice", "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "there are no tools to choose from"),
        ({"extra_body": {"guided_regex": "a"}}, "tools", "an answer without calls can follow a JSON schema only"),
        ({"extra_body": {"guided_json": {"not": {}}}}, "guided_json", "not"),
        ({"extra_body": {"functions": TOOLS}}, "functions", "c2t serve does not support functions: use tools"),
        ({"extra_body": {"function_call": {"name": "a"}}}, "function_call", "function_call: use tool_choice"),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": []}, {"role": "tool"}]},
            "messages",
            "content may",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "[1]"}}]}]},
            "messages",
            "messages.0.tool_calls.0.function.arguments: arguments must be the text of a JSON object",
        ),
    ],
)
def test_what_cannot_be_is_named(fields: dict[str, Any], param: str, said: str, ai: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        chat(ai, **fields)
    assert error.value.param == param
    assert said in error.value.body["message"]


@pytest.mark.parametrize(
    "schema", [{"not": {}}, {"type": "array"}, {"properties": {"a": {"$ref": "https://evil.example"}}}]
)
def test_parameters_that_cannot_be_followed_are_named(schema: dict[str, Any], ai: OpenAI) -> None:
    tools = [{"type": "function", "function": {"name": "a", "parameters": schema}}]
    with pytest.raises(openai.BadRequestError, match="tools: ") as error:
        chat(ai, tools=tools)
    assert error.value.param == "tools"


def test_completions_have_no_tools(ai: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="c2t serve does not support tools: leave it out"):
        ai.completions.create(model="tiny", prompt="a", extra_body={"tools": TOOLS})
