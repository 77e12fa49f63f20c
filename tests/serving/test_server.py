"""The end of a server: requests get their time, or are told that they do not."""

import signal
from threading import Thread

import httpx
import openai
import pytest

from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.models.pairs import Pair, load_pair
from c2t.policies import Plain
from c2t.serving import server as serving
from tests.serving.served import client, until

FIELDS = {"model": "tiny", "prompt": "def add(a, b):", "temperature": 0, "stream": True}


@pytest.fixture(scope="module")
def tiny() -> Pair:
    return load_pair("tiny")


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_lets_requests_end_and_a_second_one_ends_them(
    tiny: Pair, signals: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = serving.Server(SpeculativeDecoder(tiny, Plain()), serving.listen())
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    stream = client(server).completions.create(**FIELDS, max_tokens=1000 if signals == 2 else 60)
    text = next(iter(stream)).choices[0].text
    for _ in range(signals):
        server.handle_exit(signal.SIGINT, None)
    if signals == 1:
        *_, last = stream
        assert last.choices[0].finish_reason == "length"
    else:
        with pytest.raises(openai.APIError, match="the server was stopped before the text had ended"):
            text += "".join(chunk.choices[0].text for chunk in stream)
    thread.join(30)
    assert not thread.is_alive()
    assert not server.front.alive
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.address}/health")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "stopping: running requests (1) get 10 s to end; Ctrl-C again ends them now"
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
        serving.listen(host, port)


def test_names_are_checked_on_loopback_only(tiny: Pair) -> None:
    here = serving.Server(SpeculativeDecoder(tiny, Plain()), serving.listen("localhost"))
    assert here.here
    everywhere = serving.Server(SpeculativeDecoder(tiny, Plain()), serving.listen("0.0.0.0"))  # noqa: S104
    assert not everywhere.here
    for server in (here, everywhere):
        server.socket.close()
        server.front.close()
        server.front.thread.join(10)
