"""The live page: every event reaches every page, and nobody but a page of this machine."""

import http.client
import json
from collections.abc import Iterator
from threading import Thread

import pytest

from c2t.errors import InputError
from c2t.viewer.server import EVENTS, LiveServer


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with LiveServer("<p>h\u00e9</p>") as live:
        yield live


def ask(server: LiveServer, path: str, **headers: str) -> tuple[int, str]:
    """Return status and body of an answer, which for events comes when they have ended."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server.server_port, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_sends_the_page(server: LiveServer) -> None:
    assert ask(server, "/") == (200, "<p>h\u00e9</p>")
    assert ask(server, "/other")[0] == 404
    assert server.address.startswith("http://127.0.0.1:")


def test_events_reach_pages_that_were_open_and_pages_that_come_later(server: LiveServer) -> None:
    events = [{"round": 1, "piece": "a\nb"}, {"round": 2}]
    early: list[str] = []
    waiting = Thread(target=lambda: early.append(ask(server, EVENTS)[1]))
    waiting.start()
    for event in events:
        server.send(event)
    server.end()
    waiting.join(20)
    sent = "".join(f"id: {n}\ndata: {json.dumps(e, separators=(',', ':'))}\n\n" for n, e in enumerate(events))
    expected = sent + "event: end\ndata:\n\n"
    assert early == [expected]
    assert ask(server, EVENTS)[1] == expected
    assert ask(server, EVENTS, **{"Last-Event-ID": "0"})[1] == expected[expected.index("id: 1") :]
    assert ask(server, EVENTS, **{"Last-Event-ID": "x"})[1] == expected


def test_a_foreign_name_that_leads_here_is_refused(server: LiveServer) -> None:
    assert ask(server, "/", Host="evil.example")[0] == 403
    assert ask(server, "/", Host=f"localhost:{server.server.server_port}")[0] == 200


def test_a_taken_port_is_one_line(server: LiveServer) -> None:
    with pytest.raises(InputError, match=f"port {server.server.server_port}: .*; choose another, 0 for any"):
        LiveServer("", server.server.server_port)
