"""Structured outputs by OpenAI's client: every form is followed, and what cannot be is refused before it is queued."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import load_pair
from c2t.policies import Eagle2, Plain
from c2t.serving import structured
from c2t.serving.server import Server
from tests.serving.served import client, gained, metrics, serving, until, with_template
from tests.table_constraint import give_up_after

pytest.importorskip("llguidance")
ASKED = [{"role": "user", "content": "def add(a, b), as JSON"}]
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "degrees": {"type": "integer", "minimum": -99, "maximum": 99}},
    "required": ["unit", "degrees"],
    "additionalProperties": False,
}


class Answer(BaseModel):
    name: str = Field(max_length=8)
    kind: Literal["number", "text"]
    sizes: list[int] = Field(max_length=2)


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    pair = with_template(load_pair("tiny"), "{% for m in messages %}{{ m.content }}{% endfor %}")
    return SpeculativeDecoder(pair, Eagle2(K=3, levels=3, N=8))


def chat(ai: OpenAI, **fields: Any) -> Any:
    settings = {"model": "tiny", "messages": ASKED, "max_tokens": 200, "temperature": 0.0}
    return ai.chat.completions.create(**settings | fields).choices[0]


def by_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, **more}}


def complete(ai: OpenAI, **fields: Any) -> Any:
    settings = {"model": "tiny", "prompt": "def add(a, b):", "max_tokens": 200, "temperature": 0.0}
    return ai.completions.create(**settings | fields).choices[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_is_followed_and_the_text_is_that_of_the_decoder(
    ai: OpenAI, decoder: SpeculativeDecoder, temperature: float
) -> None:
    answer = chat(ai, response_format=by_schema(SCHEMA, strict=True), temperature=temperature, seed=3)
    value = json.loads(answer.message.content)
    assert (answer.finish_reason, set(value)) == ("stop", {"unit", "degrees"})
    assert value["unit"] in "CF"
    from c2t import Grammar  # noqa: PLC0415

    prompt = decoder.pair.tokenizer(ASKED[0]["content"]).input_ids
    alone = SpeculativeDecoder(decoder.pair, Plain()).generate(
        prompt, 200, temperature, seed=3, constraint=Grammar.json_schema(SCHEMA)
    )
    assert answer.message.content == alone.text


def test_a_model_of_pydantic_is_parsed(ai: OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": ASKED, "temperature": 0.0, "max_tokens": 200}
    answer = ai.chat.completions.parse(**fields, response_format=Answer)
    assert isinstance(answer.choices[0].message.parsed, Answer)
    with ai.chat.completions.stream(**fields, response_format=Answer) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed
    with pytest.raises(openai.LengthFinishReasonError):
        ai.chat.completions.parse(**fields | {"max_tokens": 5}, response_format=Answer)


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"guided_regex": "[ab]{3}-[0-9]"}, None),
        ({"structured_outputs": {"regex": "[ab]{3}-[0-9]"}}, None),
        ({"guided_choice": ["red", "green"]}, ["red", "green"]),
        ({"structured_outputs": {"choice": ["red", "green"]}}, ["red", "green"]),
        ({"guided_grammar": 'start: "a" ("b" | "c")'}, ["ab", "ac"]),
        ({"structured_outputs": {"grammar": 'root ::= "a" ("b" | "c")'}}, ["ab", "ac"]),
        ({"guided_json": {"const": 5}}, ["5"]),
        ({"structured_outputs": {"json": '{"const": [1, 2]}'}}, ["[1, 2]"]),
        ({"structured_outputs": {"json": {"const": 5}, "regex": None}, "guided_regex": None}, ["5"]),
        ({"response_format": by_schema({"const": "\u00e9", "x-guidance": {"lenient": True}})}, ['"\u00e9"']),
    ],
)
def test_every_form_is_followed_on_both_endpoints(ai: OpenAI, fields: dict[str, Any], texts: list[str] | None) -> None:
    for answer in (complete(ai, extra_body=fields), chat(ai, extra_body=fields)):
        text = answer.text if hasattr(answer, "text") else answer.message.content
        assert answer.finish_reason == "stop"
        assert text in texts if texts else len(text) == 5


def test_any_object_must_be_asked_for_by_the_word_json(server: Server, ai: OpenAI) -> None:
    answer = chat(ai, response_format={"type": "json_object"}, max_tokens=30)
    assert answer.message.content.startswith("{")
    assert answer.finish_reason == "length" or isinstance(json.loads(answer.message.content), dict)
    with pytest.raises(openai.BadRequestError, match="a message must say that the answer is JSON") as error:
        chat(ai, messages=[{"role": "user", "content": "hello"}], response_format={"type": "json_object"})
    assert error.value.param == "messages"
    assert chat(ai, response_format={"type": "text"}, max_tokens=4).finish_reason == "length"


def test_the_limit_of_tokens_may_end_a_text_inside_of_json(ai: OpenAI) -> None:
    answer = chat(ai, response_format=by_schema(SCHEMA), max_tokens=3)
    assert answer.finish_reason == "length"
    assert answer.message.content.startswith('{"unit')
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.message.content)


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


HOSTILE = [
    (by_schema(deep(400)), "nested more than 32 deep"),
    (by_schema({"enum": ["a" * 70_000]}), "at most 65,536"),
    (by_schema({"not": {"type": "string"}}), "not"),
    (by_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (by_schema({"if": {"const": 1}, "then": False}), "if"),
    (by_schema({"$ref": "https://evil.example/schema.json"}), "evil.example"),
    (by_schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
    (by_schema({"type": "string", "format": "unheard-of"}), "unheard-of"),
    (by_schema({"type": "strin"}), "strin"),
    (by_schema({"allOf": [{"type": "string"}, {"type": "number"}]}), "nsatisfiable"),
    (by_schema("{"), "dictionary"),
    ({"type": "json_schema"}, "json_schema is missing, with name and schema"),
    ({"type": "xml"}, "'json_object' or 'json_schema'"),
]


@pytest.mark.parametrize(("form", "said"), HOSTILE, ids=[said for _, said in HOSTILE])
def test_a_hostile_schema_is_one_clear_answer(server: Server, form: dict[str, Any], said: str) -> None:
    before = metrics(server)
    body = {"model": "tiny", "messages": ASKED, "response_format": form, "max_tokens": 5}
    answer = httpx.post(f"{server.address}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "response_format"
    assert said in error["message"]
    assert error["message"].isprintable()
    grown = gained(server, before)
    assert (grown["c2t_requests_total.refused"], grown["c2t_prompt_tokens_total"]) == (1, 0)


def test_what_is_too_deep_to_be_read_is_refused_as_a_body(server: Server) -> None:
    for levels in (1000, 20_000):
        schema = '{"items": ' * levels + "{}" + "}" * levels
        body = f'{{"model": "tiny", "prompt": "a", "guided_json": {schema}}}'
        answer = httpx.post(
            f"{server.address}/v1/completions",
            content=body,
            headers={"Content-Type": "application/json"},
            timeout=60,
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"guided_regex": "("}, "guided_regex", "guided_regex: "),
        ({"guided_grammar": "start: nothing"}, "guided_grammar", "guided_grammar: "),
        ({"guided_grammar": "?"}, "guided_grammar", "guided_grammar: "),
        ({"guided_choice": []}, "guided_choice", "must be a list of texts"),
        ({"guided_json": "{"}, "guided_json", "is no JSON"),
        ({"guided_json": '{"const": "\\ud800"}'}, "guided_json", "half of a surrogate pair"),
        ({"guided_json": {"$ref": "#"}}, "guided_json", "allows no token"),
        ({"guided_json": "[" * 10**5}, "guided_json", "is no JSON"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "a text can follow one of them only"),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs",
            "does not support structured_outputs.st",
        ),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs", "structured_outputs.regex"),
    ],
)
def test_what_is_no_form_is_named(ai: OpenAI, fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        complete(ai, extra_body=fields)
    assert error.value.param == param
    assert said in error.value.body["message"]


def test_a_constraint_that_becomes_too_complex_is_the_request_s_fault(
    ai: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_after(monkeypatch, 3)
    fields: dict[str, Any] = {"structured_outputs": {"regex": "x{5}(y|z){50}"}}
    said = "the text cannot go on: the constraint is too complex to go on"
    with pytest.raises(openai.BadRequestError, match=said) as error:
        complete(ai, extra_body=fields)
    assert error.value.param == "structured_outputs"
    stream = ai.completions.create(model="tiny", prompt="a", max_tokens=200, stream=True, extra_body=fields)
    with pytest.raises(openai.APIError, match=said) as error:
        list(stream)
    assert error.value.param == "structured_outputs"


def test_a_choice_may_have_thousands_of_texts(ai: OpenAI) -> None:
    texts = [f"value {number}" for number in range(3000)]
    assert complete(ai, extra_body={"guided_choice": texts}).text in texts


def test_a_rule_that_counts_tokens_is_refused(ai: OpenAI) -> None:
    grammar = '%llguidance {}\nstart: a "b"\na[max_tokens=2]: /.*/'
    with pytest.raises(openai.BadRequestError, match="cannot take tokens back"):
        complete(ai, extra_body={"guided_grammar": grammar})


def test_special_tokens_of_a_grammar_are_part_of_the_text(decoder: SpeculativeDecoder) -> None:
    """Also where a stop string may have begun before one."""
    pair = with_template(decoder.pair, "")
    pair.tokenizer.add_special_tokens({"additional_special_tokens": ["return"]})
    grammar = f'start: "ab" <[{pair.tokenizer.convert_tokens_to_ids("return")}]> "c"'
    with serving(SpeculativeDecoder(pair, Plain())) as server:
        for stop, text in ((["abx"], "abreturnc"), (["bret"], "a")):
            assert complete(client(server), extra_body={"guided_grammar": grammar}, stop=stop).text == text


def test_a_compilation_has_its_time(decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured, "check_constraint", lambda *_: time.sleep(0.5))
    monkeypatch.setattr(structured, "SECONDS", 0.05)
    late = "guided_regex: it was not compiled within 0.05 seconds"
    with serving(decoder) as server, pytest.raises(openai.BadRequestError, match=late):
        complete(client(server), extra_body={"guided_regex": "a"})


def test_one_request_costs_no_other_its_text(server: Server, ai: OpenAI) -> None:
    """Free and constrained texts, and refused ones, at the same time."""
    free, schema = complete(ai, max_tokens=20).text, chat(ai, response_format=by_schema(SCHEMA)).message.content

    def ask(number: int) -> str:
        match number % 4:
            case 0:
                return complete(ai, max_tokens=20).text
            case 1:
                return chat(ai, response_format=by_schema(SCHEMA)).message.content
            case 2:
                return chat(ai, extra_body={"guided_choice": ["red", "red"]}).message.content
        with pytest.raises(openai.BadRequestError):
            chat(ai, response_format=by_schema({"not": {}}))
        return ""

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, range(16)))
    assert texts == [free, schema, "red", ""] * 4


@pytest.mark.slow
def test_300_clients_at_the_same_time_get_their_texts_or_429(decoder: SpeculativeDecoder) -> None:
    with serving(decoder, max_rows=4, max_waiting=40) as server:
        address = f"{server.address}/v1/completions"
        body = {"model": "tiny", "prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0}
        wanted = httpx.post(address, json=body, timeout=60).json()["choices"][0]["text"]
        bodies = [body | ({"guided_choice": ["red"]} if number % 2 else {}) for number in range(300)]
        with ThreadPoolExecutor(300) as pool:
            answers = list(pool.map(lambda body: httpx.post(address, json=body, timeout=120), bodies))
        assert {answer.status_code for answer in answers} == {200, 429}
        for number, answer in enumerate(answers):
            if answer.status_code == 200:
                assert answer.json()["choices"][0]["text"] == ("red" if number % 2 else wanted)
            else:
                assert answer.headers["Retry-After"] == "1"
        until(lambda: metrics(server)["c2t_requests_running"] == 0)


@pytest.mark.parametrize("temperature", [1e9, 1e-9])
def test_extreme_temperatures_are_named(ai: OpenAI, temperature: float) -> None:
    with pytest.raises(openai.BadRequestError, match=r"temperature = .* must be 0"):
        complete(ai, temperature=temperature)
