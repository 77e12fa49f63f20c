"""Where a server listens, and its end: requests get their time, or are told that they do not."""

import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Event, Thread
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from c2t.batching import Update
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.policies import Budget, Eagle2, Plain
from c2t.serving import connections
from c2t.serving import server as serving
from c2t.serving.loading import answering, listen
from tests.every_policy import toy_costs
from tests.serving.served import client, metrics, until
from tests.serving.served import serving as served

FIELDS = {"model": "tiny", "prompt": "def add(a, b):", "temperature": 0, "stream": True}


@pytest.fixture(scope="module")
def tiny() -> Pair:
    return load_pair("tiny")


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_lets_requests_end_and_a_second_one_ends_them(
    tiny: Pair, signals: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "GRACE", 600.0)
    server = serving.Server(SpeculativeDecoder(tiny, Plain()), listen())
    step, signalled, rounds = server.front.decoder.step, Event(), count(1)

    def waiting() -> list[Update]:
        assert next(rounds) < 3 or signalled.wait(60)
        return step()

    monkeypatch.setattr(server.front.decoder, "step", waiting)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    stream = client(server).completions.create(**FIELDS, max_tokens=30)
    next(iter(stream))
    for _ in range(signals):
        server.handle_exit(signal.SIGINT, None)
    signalled.set()
    if signals == 1:
        *_, last = stream
        assert last.choices[0].finish_reason == "length"
    else:
        with pytest.raises(openai.APIError, match="the server was stopped before the text had ended"):
            list(stream)
    thread.join(30)
    assert not thread.is_alive()
    assert not server.front.alive
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.address}/health", timeout=60)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "stopping: running requests (1) get 600 s to end; Ctrl-C again ends them now"
    ]


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("256.0.0.1", 80, "cannot serve on 256.0.0.1, port 80: .*; choose another, 0 for any port"),
        ("a" * 300, 80, "cannot serve on a+, port 80"),
        ("127.0.0.1", 70000, "port must be 0-65535"),
    ],
)
def test_an_address_that_cannot_be_had_is_one_line(host: str, port: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        listen(host, port)


def test_names_are_checked_on_loopback_only(tiny: Pair) -> None:
    here = serving.Server(SpeculativeDecoder(tiny, Plain()), listen("localhost"))
    assert here.here
    everywhere = serving.Server(SpeculativeDecoder(tiny, Plain()), listen("0.0.0.0"))  # noqa: S104
    assert not everywhere.here
    for server in (here, everywhere):
        server.socket.close()
        server.front.close()
        server.front.thread.join(10)


def test_requests_that_do_not_arrive_keep_nobody_out(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HALVES", 5)
    monkeypatch.setattr(connections, "SECONDS", 0.5)
    with served(SpeculativeDecoder(tiny, Plain()), max_rows=1, max_waiting=1) as server:
        halves = [socket.create_connection(server.socket.getsockname()) for _ in range(20)]
        for half in halves:
            half.settimeout(20)
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX: y\r\n")

        def healthy() -> bool:
            with suppress(httpx.TransportError):  # of a machine so slow that this one takes half a second
                return httpx.get(f"{server.address}/health", timeout=60).status_code == 200
            return False

        until(healthy)
        monkeypatch.setattr(connections, "SECONDS", 20.0)
        with httpx.Client(timeout=60) as kept:  # one that asks again on its connection is no such request
            assert [kept.get(f"{server.address}/health").status_code for _ in range(3)] == [200] * 3
        for half in halves:
            with half, suppress(ConnectionResetError):
                assert half.recv(100) == b"", "it was ended"


def test_clients_of_one_moment_are_all_read(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than connections may wait: none is closed before its request was read."""
    monkeypatch.setattr(connections, "HALVES", 5)
    monkeypatch.setattr(connections, "BURST", 5.0)
    with served(SpeculativeDecoder(tiny, Plain())) as server:
        clients = [socket.create_connection(server.socket.getsockname()) for _ in range(20)]
        for client in clients:
            client.settimeout(20)
            client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for client in clients:
            with client:
                assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_a_client_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD", 0.2)
    gone = Event()

    async def much(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(1 << 26), "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    config = uvicorn.Config(much, http=partial(connections.Connection, {}), lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with listen() as listener:
        thread = Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            assert gone.wait(30)
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("limits", "set_to", "most"),
    [((1024, 4096), 1128, 1000), ((1024, 1024), 1024, 896), ((4096, 4096), None, 1000), ((-1, -1), None, 1000)],
)
def test_connections_are_as_many_as_files_may_be_open(
    limits: tuple[int, int], set_to: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = []
    monkeypatch.setattr(serving.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(serving.resource, "setrlimit", lambda _, value: now.append(value))
    assert serving.most_connections(1000) == most
    assert now == ([] if set_to is None else [(set_to, limits[1])])


def test_before_the_models_are_there_every_answer_is_503() -> None:
    with listen() as listener:
        address = "http://{}:{}".format(*listener.getsockname())
        with answering(listener), ThreadPoolExecutor(3) as pool:
            ways = [("GET", "/health"), ("POST", "/v1/completions"), ("GET", "/metrics"), ("HEAD", "/health")]
            found = list(pool.map(lambda way: httpx.request(way[0], address + way[1], json=FIELDS, timeout=60), ways))
            assert [each.status_code for each in found] == [503] * 4
            assert found[3].content == b""
            assert found[0].json() == {"status": "loading"}
            assert found[1].json()["error"]["type"] == "server_error"
            assert found[1].headers["Retry-After"] == "1"
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(address, timeout=0.2)  # which waits for whoever listens next


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
def test_an_address_of_ipv6_is_served_and_checked_likewise(tiny: Pair) -> None:
    decoder = SpeculativeDecoder(tiny, Plain())
    with served(decoder, "::1") as server:
        assert re.fullmatch(r"http://\[::1\]:\d+", server.address)
        answer = client(server).completions.create(**{**FIELDS, "stream": False}, max_tokens=4)
        assert answer.choices[0].text == decoder.generate(FIELDS["prompt"], 4, chat=False).text
        assert httpx.get(f"{server.address}/health", headers={"Host": "evil.example"}, timeout=60).status_code == 400


def test_a_budget_by_costs_serves_every_text_as_it_is_alone(tiny: Pair) -> None:
    """Its trees depend on who else is being decoded."""
    spent_on = Eagle2(K=3, levels=3, N=None)
    decoder = SpeculativeDecoder(tiny, Budget(spent_on, costs=toy_costs(3)))
    prompts = ["def add(a, b):", "The sum of", "class Tree"]
    fields = {**FIELDS, "stream": False, "max_tokens": 12}
    with served(decoder, max_rows=2) as server, ThreadPoolExecutor(3) as pool:
        ai = client(server)
        answers = list(pool.map(lambda prompt: ai.completions.create(**{**fields, "prompt": prompt}), prompts))
        found = metrics(server)
    plain = SpeculativeDecoder(tiny, Plain())
    texts = [answer.choices[0].text for answer in answers]
    assert texts == [plain.generate(prompt, 12, chat=False).text for prompt in prompts]
    assert found["c2t_gamma"] > 1, "some rounds have drafted"
