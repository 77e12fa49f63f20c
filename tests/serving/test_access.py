"""Who may ask: an API key, the origins of web pages, and the name that a model is served under."""

import logging

import httpx
import openai
import pytest
from openai import OpenAI

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import load_pair
from c2t.policies import Plain
from c2t.serving.throughput import EVERY, Throughput
from tests.serving.served import client, metrics, serving

PAGE = "http://pages.example:3000"
FIELDS = {"model": "mine", "prompt": "def add(a, b):", "max_tokens": 4}


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder(load_pair("tiny"), Plain())


def test_a_wrong_key_is_401_and_nothing_is_read(decoder: SpeculativeDecoder, caplog: pytest.LogCaptureFixture) -> None:
    with serving(decoder, name="mine", key="s\u00e9same") as server:
        right = OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
        keyed = {"Authorization": "Bearer s\u00e9same".encode()}
        for headers in ({}, {"Authorization": "Bearer s"}, {"Authorization": "Basic s\u00e9same".encode()}):
            answer = httpx.post(f"{server.address}/v1/completions", content=b"[" * 10**5, headers=headers, timeout=60)
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["code"] == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
            right.models.list()
        assert httpx.get(f"{server.address}/openapi.json", timeout=60).status_code == 401
        assert [httpx.get(server.address + path, timeout=60).status_code for path in ("/health", "/metrics")] == [
            200,
            200,
        ]
        answer = httpx.post(f"{server.address}/v1/completions", json=FIELDS, headers=keyed, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "mine"
    assert "401 /v1/completions: the API key" in caplog.text


def test_only_pages_of_an_allowed_origin_may_call(decoder: SpeculativeDecoder) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    with serving(decoder, key="k", origins=[PAGE]) as server:
        address = f"{server.address}/v1/completions"
        allowed = httpx.options(address, headers={**asks, "Origin": PAGE})
        assert (allowed.status_code, allowed.headers["Access-Control-Allow-Origin"]) == (200, PAGE)
        assert httpx.options(address, headers={**asks, "Origin": "http://evil.example"}).status_code == 400
        refused = httpx.post(address, headers={"Origin": PAGE}, timeout=60)
        assert (refused.status_code, refused.headers["Access-Control-Allow-Origin"]) == (401, PAGE), "it may be read"
    with serving(decoder) as server:
        answer = httpx.get(f"{server.address}/health", headers={"Origin": PAGE}, timeout=60)
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_line_of_throughput_comes_every_ten_seconds_of_work(
    decoder: SpeculativeDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    with caplog.at_level(logging.INFO), serving(decoder, name="mine") as server:
        lines = Throughput(server.metrics, server.front, clock=lambda: now[0])
        for model in ("mine", "tiny"):
            answer = httpx.post(f"{server.address}/v1/completions", json={**FIELDS, "model": model}, timeout=60)
            assert answer.status_code == (200 if model == "mine" else 404)
        assert client(server).models.list().data[0].id == "mine"
        now[0] = EVERY - 1
        assert lines.line() is None
        now[0] = 2 * EVERY
        new, prompt = (metrics(server)[f"c2t_{name}_tokens_total"] / (2 * EVERY) for name in ("new", "prompt"))
        speeds = f"{new:.1f} new tokens/s, {prompt:.1f} prompt tokens/s"
        assert lines.line() == f"{speeds}, acceptance length 1.00; running: 0, waiting: 0"
        now[0] = 4 * EVERY
        assert lines.line() is None, "it rests"
