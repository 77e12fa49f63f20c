"""OpenAI's API with OpenAI's client, against a server in a thread."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import Pair, load_pair
from c2t.models.target.prefixes import Prefixes
from c2t.policies import Eagle2, Plain
from c2t.serving.access import BODY
from c2t.serving.refusals import ADDRESSES
from c2t.serving.server import Server
from tests.rounding import figure
from tests.serving.served import client, gained, metrics, serving, until, with_template

PROMPT, SHORT = "def add(a, b):", 12
TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}assistant:"


@pytest.fixture(scope="module")
def tiny() -> Pair:
    return load_pair("tiny")


@pytest.fixture(scope="module")
def decoder(tiny: Pair) -> SpeculativeDecoder:
    return SpeculativeDecoder(tiny, Eagle2(K=3, levels=3, N=8))


@pytest.fixture(scope="module")
def server(decoder: SpeculativeDecoder) -> Iterator[Server]:
    with serving(decoder, max_rows=2, max_waiting=3) as running:  # three at once wait until the next step
        yield running


def post(server: Server, content: Any, kind: str = "application/json") -> httpx.Response:
    return httpx.post(f"{server.address}/v1/completions", content=content, headers={"Content-Type": kind}, timeout=60)


def complete(ai: OpenAI, **fields: Any) -> Any:
    return ai.completions.create(**{"model": "tiny", "prompt": PROMPT, "max_tokens": SHORT, "temperature": 0} | fields)


def streamed(ai: OpenAI, **fields: Any) -> tuple[str, str, Any]:
    """Return text, finish reason and usage of a stream."""
    chunks = list(complete(ai, stream=True, stream_options={"include_usage": True}, **fields))
    *pieces, last = [chunk for chunk in chunks if chunk.choices]
    assert all(chunk.choices[0].finish_reason is None for chunk in pieces)
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(chunk.choices[0].text for chunk in [*pieces, last])
    return text, last.choices[0].finish_reason, chunks[-1].usage


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 0), (1.0, 3)])
def test_the_text_is_that_of_the_decoder_alone(
    ai: OpenAI, decoder: SpeculativeDecoder, temperature: float, seed: int
) -> None:
    prompts = [PROMPT, "The sum of", "class Tree"]
    with ThreadPoolExecutor(3) as pool:  # at once
        answers = list(pool.map(lambda p: complete(ai, prompt=p, temperature=temperature, seed=seed), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = decoder.generate(prompt, SHORT, temperature, seed=seed, chat=False)
        [ids] = decoder.encode(prompt, chat=False)
        assert answer.choices[0].text == alone.text
        new, reason = len(alone.sequences[0]), answer.choices[0].finish_reason
        assert reason == ("length" if new == SHORT else "stop")
        counted = answer.usage.model_dump(exclude_none=True)
        assert counted.pop("prompt_tokens_details") == {"cached_tokens": 0}
        assert counted == {"prompt_tokens": len(ids), "completion_tokens": new, "total_tokens": len(ids) + new}
        assert streamed(ai, prompt=ids, temperature=temperature, seed=seed) == (alone.text, reason, answer.usage)


def test_without_settings_texts_are_sampled_at_temperature_1(ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    bare = {"model": "tiny", "prompt": PROMPT}
    texts = {ai.completions.create(**bare).choices[0].text for _ in range(3)}
    assert len(texts) > 1, "a request without a seed has one of its own"
    answer = ai.completions.create(**bare, seed=5)
    assert answer.usage.completion_tokens <= 16
    assert answer.choices[0].text == decoder.generate(PROMPT, 16, 1.0, seed=5, chat=False).text


def test_a_stop_string_ends_the_text_before_it(ai: OpenAI) -> None:
    whole = complete(ai).choices[0].text
    cut = whole.index("Continuous") if "Continuous" in whole else len(whole) // 2
    stop = whole[cut : cut + 6]
    answer = complete(ai, max_tokens=400, stop=[stop, "nowhere"])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens <= SHORT
    assert streamed(ai, max_tokens=400, stop=stop) == (answer.choices[0].text, "stop", answer.usage)


REFUSED = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 4}, "n"),  # more than may wait here
    ({"best_of": 3}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs"),
    ({"extra_body": {"top_logprobs": 2}}, "top_logprobs"),
    ({"extra_body": {"tools": [{"type": "function"}]}}, "tools"),
    ({"temperature": -1.0}, "temperature"),
    ({"temperature": 1e39}, "temperature"),  # infinite in float32
    ({"temperature": 1e-39}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**6}, "prompt"),
    ({"extra_body": {"max_tokens": "many"}}, "max_tokens"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"seed": 2**64}, "seed"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [5, 10**6]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": ["one", 2]}, "prompt"),
    ({"prompt": ["one"] * 4}, "prompt"),
    ({"prompt": "a\ud800"}, "prompt"),
    ({"extra_body": {"skip_special_tokens": False}}, "skip_special_tokens"),
    ({"extra_body": {"bad_words": ["a"]}}, "bad_words"),
    ({"extra_body": {"max_completion_tokens": 3}}, "max_completion_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(fields)[:40] for fields, _ in REFUSED])
def test_what_is_not_served_is_refused_by_name(server: Server, fields: dict[str, Any], param: str) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, **fields, **fields.get("extra_body", {})}
    before = metrics(server)
    answer = post(server, json.dumps(body))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"] or "text" in error["message"]
    assert "change the text" not in error["message"]
    assert "\n" not in error["message"]
    assert gained(server, before)["c2t_requests_total.refused"] == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stop": ["a"] * 5}, "stop: List should have at most 4 items"),
        ({"prompt": [2, "one"]}, "prompt.1: Input should be a valid integer"),
        ({"prompt": None}, "prompt: Input should be a valid string"),
        ({"guided_json": 5}, "guided_json: Input should be a valid"),
        ({"temperature": -1}, "temperature = -1.0: must be 0"),
        ({"\ud800": 1}, "the body has a field whose name is no text"),
        ({"stream_options": {"include_usage": 5}}, "stream_options.include_usage: Input should be a valid boolean"),
    ],
)
def test_the_place_of_an_error_has_names_of_the_request_alone(
    server: Server, fields: dict[str, Any], said: str
) -> None:
    answer = post(server, json.dumps({"model": "tiny", "prompt": PROMPT, **fields}))
    assert answer.json()["error"]["message"].startswith(said)


@pytest.mark.parametrize("body", ["[" * 10**5, f'{{"seed": {"9" * 5000}}}'])
def test_a_body_that_cannot_be_read_says_why(server: Server, body: str) -> None:
    answer = post(server, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("the body is no JSON that can be read: ")


def test_a_prompt_that_begins_as_one_before_is_counted(tiny: Pair) -> None:
    tiny.target.prefixes = Prefixes()
    try:
        with serving(SpeculativeDecoder(tiny, Plain())) as running:
            answers = [complete(client(running)) for _ in range(2)]
            found = metrics(running)
            both = complete(client(running), n=2).usage
            options = {"include_usage": True, "continuous_usage_stats": True}
            chunks = list(complete(client(running), stream=True, stream_options=options))
        assert answers[0].choices[0].text == answers[1].choices[0].text
        known = found["c2t_prompt_tokens_total"] / 2 - 1 if tiny.target.packed is not None else 0
        assert found["c2t_prompt_tokens_reused"] == known
        usages = [answers[0].usage, answers[1].usage, both, chunks[-1].usage]
        assert [usage.prompt_tokens_details.cached_tokens for usage in usages] == [0, known, known, known]
        *counts, last = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[0] < counts[-1] == last
    finally:
        tiny.target.prefixes = None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(width=16) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
BRIEF = VALUES.filter(lambda value: not isinstance(value, int) or value < 4 or value > 1024)  # of new tokens
BODIES = st.fixed_dictionaries(
    {"model": st.just("tiny") | VALUES, "prompt": st.just(PROMPT) | VALUES, "max_tokens": st.just(1) | BRIEF},
    optional={
        name: VALUES
        for name in (
            *(
                "temperature",
                "top_p",
                "seed",
                "stop",
                "stream",
                "stream_options",
                "n",
                "response_format",
                "guided_json",
            ),
            *("structured_outputs", "guided_regex", "guided_grammar", "guided_choice", "tools"),
            *("logprobs", "echo", "top_k", "min_p", "frequency_penalty", "repetition_penalty", "logit_bias"),
        )
    },
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # the server's thread may, while a body is drawn
@settings(max_examples=40, deadline=None)
@given(body=BODIES)
def test_no_body_is_an_error_of_the_server(server: Server, body: dict[str, Any]) -> None:
    answer = post(server, json.dumps(body))
    assert answer.status_code in (200, 400, 404)
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["message"]
        assert error["message"].isprintable()


def test_fields_that_change_nothing_are_taken(ai: OpenAI) -> None:
    usual = complete(ai).choices[0].text
    neutral = {"n": 1, "echo": False, "logit_bias": {}, "presence_penalty": 0, "user": "me", "best_of": None}
    more = {"tools": [], "top_k": -1, "response_format": {"type": "text"}, "metadata": {"a": "b"}, "logprobs": None}
    assert complete(ai, **neutral, extra_body=more).choices[0].text == usual


def test_errors_are_openais(server: Server, ai: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-5' does not exist here: this server has 'tiny'") as found:
        complete(ai, model="gpt-5")
    assert found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match=r"8 tokens \+ 1020 new ones exceed the target's 1,?024 positions"):
        complete(ai, max_tokens=1020)
    for answer, said in (
        (post(server, b'{"model":'), "the body is no JSON: Expecting value at character 9"),
        (post(server, b"[" * 10**5), "nested too deeply"),
        (post(server, b"[1]"), "must be a JSON object|dictionary"),
        (post(server, b'{"model": "tiny"}'), "prompt: Field required"),
        (post(server, b'{"model": "tiny", "prompt": "a"}', "text/plain"), "sent as Content-Type: application/json"),
    ):
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert any(part in error["message"] for part in said.split("|")), error
    with pytest.raises(openai.BadRequestError, match="tiny has no chat template: use /v1/completions"):
        ai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello"}])
    missing = httpx.get(f"{server.address}/v1/files", timeout=60)
    said = f"there is no such address: c2t serve has {', '.join(ADDRESSES)}"
    assert (missing.status_code, missing.json()["error"]["message"]) == (404, said)
    assert {*ADDRESSES} <= {route.path for route in server.config.app.routes}
    wrong = httpx.get(f"{server.address}/v1/completions", timeout=60)
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "POST")


def test_a_body_that_is_too_long_is_refused_before_it_is_read(server: Server) -> None:
    assert BODY == 2**20
    long = json.dumps({"model": "tiny", "prompt": "a" * BODY}).encode()
    for content in (long, iter([long[: BODY // 2], long[BODY // 2 :]])):  # with its length, and without
        answer = post(server, content)
        assert answer.status_code == 413
        assert answer.json()["error"]["message"] == f"the body has more than {BODY:,} bytes"


def test_models_and_health(server: Server, ai: OpenAI) -> None:
    [listed], room = ai.models.list(), 1024
    assert (listed.id, ai.models.retrieve("tiny")) == ("tiny", listed)
    assert listed.max_model_len == room
    with pytest.raises(openai.NotFoundError, match="'a/b' does not exist here: this server has 'tiny'"):
        ai.models.retrieve("a/b")
    assert httpx.get(f"{server.address}/health", timeout=60).json() == {"status": "ok"}
    head = httpx.head(f"{server.address}/health", timeout=60)
    assert (head.status_code, head.content) == (200, b"")
    assert httpx.get(f"{server.address}/docs", timeout=60).status_code == 404, (
        "a page that would load scripts from elsewhere"
    )


def test_a_foreign_name_that_leads_here_is_refused(server: Server) -> None:
    port = server.address.rpartition(":")[2]
    for host in ("evil.example", f"0.0.0.0:{port}", "127.0.0.1.evil.example", "", "[", "user@evil.example"):
        answer = httpx.get(f"{server.address}/health", headers={"Host": host}, timeout=60)
        assert answer.status_code == 400
        assert "use one of these, or --host" in answer.json()["error"]["message"]
    for host in (f"127.0.0.1:{port}", "localhost", f"[::1]:{port}", "LOCALHOST"):
        assert httpx.get(f"{server.address}/health", headers={"Host": host}, timeout=60).status_code == 200


def test_who_goes_away_frees_the_row(server: Server, ai: OpenAI) -> None:
    before = metrics(server)
    stream = complete(ai, max_tokens=1000, stream=True)
    next(iter(stream))
    assert metrics(server)["c2t_requests_running"] == 1
    stream.close()
    until(lambda: metrics(server)["c2t_requests_running"] == 0)
    whole = OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=0.3)
    with pytest.raises(openai.APITimeoutError):  # whose client waits for the whole text
        complete(whole, max_tokens=1000)
    until(lambda: gained(server, before)["c2t_requests_total.cancelled"] == 2)
    until(lambda: metrics(server)["c2t_requests_running"] == 0)
    assert gained(server, before)["c2t_new_tokens_total"] < 1000, "not to their ends"


def test_too_many_at_once_are_told_to_come_again(server: Server, ai: OpenAI) -> None:
    before = metrics(server)
    streams = [complete(ai, max_tokens=1000, stream=True) for _ in range(2)]
    for stream in streams:
        next(iter(stream))  # runs
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(complete, ai) for _ in range(3)]
        until(lambda: metrics(server)["c2t_requests_waiting"] == 3)
        with pytest.raises(openai.RateLimitError) as refused:
            complete(ai)
        assert refused.value.response.headers["Retry-After"] == "1"
        for stream in streams:
            stream.close()
        assert [answer.result().choices[0].finish_reason for answer in waiting] == ["length"] * 3
    found = gained(server, before)
    assert (found["c2t_requests_total.full"], found["c2t_requests_total.length"]) == (1, 3)


def test_metrics_add_up(server: Server, ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    before = metrics(server)
    answers = [complete(ai, prompt=prompt) for prompt in (PROMPT, "The sum of")]
    found, now = gained(server, before), metrics(server)
    alone = decoder.generate([PROMPT, "The sum of"], SHORT, chat=False).total
    assert found["c2t_requests_total.length"] == len(answers)
    assert found["c2t_prompt_tokens_total"] == sum(answer.usage.prompt_tokens for answer in answers)
    assert found["c2t_new_tokens_total"] == sum(answer.usage.completion_tokens for answer in answers)
    assert found["c2t_rounds_total"] == alone.rounds
    assert found["c2t_accepted_tokens_total"] == alone.accepted_tokens
    assert found["c2t_verified_tokens_total"] == alone.verified_tokens
    assert found["c2t_time_to_first_token_seconds_count"] == len(answers)
    assert now["c2t_tau"] == figure(now["c2t_accepted_tokens_total"] / now["c2t_rounds_total"])
    assert now["c2t_gamma"] == figure(now["c2t_verified_tokens_total"] / now["c2t_rounds_total"])
    speed = now["c2t_new_tokens_total"] / now["c2t_busy_seconds_total"]
    assert now["c2t_tokens_per_second"] == figure(speed)
    assert (now["c2t_requests_running"], now["c2t_requests_waiting"]) == (0, 0)


def test_chat(tiny: Pair) -> None:
    pair = with_template(tiny, TEMPLATE)
    decoder = SpeculativeDecoder(pair, Eagle2(K=3, levels=3, N=8))
    said = [
        {"role": "system", "content": "Write code."},
        {"role": "user", "content": [{"type": "text", "text": "def "}, {"type": "text", "text": "add"}]},
        {"role": "assistant", "content": "(a, b)"},
        {"role": "user", "content": "more"},
    ]
    text = "system: Write code.\nuser: def add\nassistant: (a, b)\nuser: more\nassistant:"
    ids = pair.tokenizer(text, add_special_tokens=False).input_ids  # a template writes its own
    alone = decoder.generate(ids, SHORT).text
    fields: dict[str, Any] = {"model": "tiny", "messages": said, "temperature": 0}
    with serving(decoder) as server:
        ai = client(server)
        answer = ai.chat.completions.create(**fields, max_completion_tokens=SHORT)
        assert answer.choices[0].message.content == alone
        assert (answer.choices[0].message.role, answer.usage.prompt_tokens) == ("assistant", len(ids))
        stop = alone[5:9]
        with ai.chat.completions.stream(**fields, max_tokens=SHORT, stop=stop) as stream:
            message = stream.get_final_completion().choices[0]
        assert (message.message.content, message.finish_reason) == (alone[: alone.index(stop)], "stop")
        assert message.message.role == "assistant"
        for wrong, reason in (
            ({"role": "critic", "content": "a"}, "messages.0.role"),
            ({"role": "user", "content": None}, "messages.0: content may be null or absent only where an assistant's"),
            ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages.0.content"),
            ({"role": "user", "content": ""}, "an empty prompt"),
        ):
            with pytest.raises(openai.BadRequestError, match=reason):
                ai.chat.completions.create(**fields | {"messages": [wrong]})


def test_who_names_no_number_gets_the_room_that_is_left(tiny: Pair) -> None:
    pair = with_template(tiny, "{% for m in messages %}{{ m.content }}{% endfor %}")
    with serving(SpeculativeDecoder(pair, Eagle2(K=3, levels=3, N=8)), max_tokens=40) as server:
        ai = client(server)
        fields: dict[str, Any] = {"model": "tiny", "temperature": 0, "messages": [{"role": "user", "content": PROMPT}]}
        usage = ai.chat.completions.create(**fields).usage
        assert usage.total_tokens == 40 - 3, "the last tree has three levels"
        assert ai.completions.create(model="tiny", prompt=PROMPT * 3, temperature=0).usage.total_tokens <= 37
        with pytest.raises(openai.BadRequestError, match="the limit is 40"):
            ai.completions.create(model="tiny", prompt=PROMPT * 10)
        with pytest.raises(openai.BadRequestError, match=r"characters are [0-9,]+ tokens or more, the limit is 40"):
            ai.completions.create(model="tiny", prompt="a " * 10_000)
        long = [{"role": "user", "content": "a " * 10_000}]
        with pytest.raises(openai.BadRequestError, match="tokens or more, the limit is 40"):
            ai.chat.completions.create(model="tiny", messages=long)
        pair.tokenizer.chat_template = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
        long[0]["content"] = "a" + " " * 100_000  # of which the template leaves one letter
        assert ai.chat.completions.create(model="tiny", messages=long).usage.prompt_tokens == 1


def test_two_prompts_are_read_at_a_time(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, reading, most = SpeculativeDecoder(tiny, Eagle2(K=3, levels=3, N=8)), [], []
    encode = decoder.encode

    def slowly(*given: Any) -> list[list[int]]:
        reading.append(given)
        most.append(len(reading))
        time.sleep(0.05)
        reading.pop()
        return encode(*given)

    monkeypatch.setattr(decoder, "encode", slowly)
    with serving(decoder) as server, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: complete(client(server), max_tokens=1), range(8)))
    assert max(most) == 2


@pytest.mark.parametrize("roles", [("user",), ("system", "user")])
def test_what_a_chat_template_raises_is_a_refusal(tiny: Pair, roles: tuple[str, ...]) -> None:
    pair = with_template(tiny, "")
    said = [{"role": role, "content": "a"} for role in roles]
    with serving(SpeculativeDecoder(pair, Eagle2(K=3, levels=3, N=8))) as server:
        for template, reason in (("{{ 1 / 0 }}", "division by zero"), ("{{ raise_exception('no') }}", "no")):
            pair.tokenizer.chat_template = template
            with pytest.raises(openai.BadRequestError) as error:
                client(server).chat.completions.create(model="tiny", messages=said)
            assert error.value.body["message"] == f"the chat template: {reason}"


def test_an_error_while_decoding_reaches_the_client(
    server: Server, ai: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("a row of zeros")

    stream = complete(ai, max_tokens=1000, stream=True)
    next(iter(stream))
    monkeypatch.setattr(server.front.decoder, "_run_round", fail)
    with pytest.raises(openai.APIError, match="ZeroDivisionError: a row of zeros") as error:
        list(stream)
    assert "send it again" in error.value.message
    monkeypatch.setattr(server.front.decoder, "_run_round", fail)
    with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
        complete(ai)
    assert complete(ai).choices[0].finish_reason == "length", "the server goes on"
