"""A server in a thread, and what its clients look at."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from threading import Thread
from typing import Any

import httpx
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import Pair
from c2t.serving.loading import HERE, listen
from c2t.serving.server import Server


@contextmanager
def serving(decoder: SpeculativeDecoder, host: str = HERE[0], **settings: Any) -> Iterator[Server]:
    """Serve on a free port."""
    server = Server(decoder, listen(host), **settings)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
        server.front.thread.join(30)
        assert not server.front.thread.is_alive()


def with_template(pair: Pair, template: str) -> Pair:
    """Return the pair with a chat template of its own."""
    pair = replace(pair, template="chat", tokenizer=deepcopy(pair.tokenizer))
    pair.tokenizer.chat_template = template
    return pair


def client(server: Server) -> OpenAI:
    """Return a client of OpenAI's that sends everything once."""
    return OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=60)


def metrics(server: Server) -> dict[str, float]:
    """Return the metrics by their names, the outcome of requests behind a dot."""
    text = httpx.get(f"{server.address}/metrics", timeout=60).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "le" not in sample.labels:
                name = sample.name + "".join(f".{value}" for value in sample.labels.values())
                found[name] = sample.value
    return found


def gained(server: Server, before: dict[str, float]) -> dict[str, float]:
    """Return how much each metric has grown."""
    return {name: value - before[name] for name, value in metrics(server).items()}


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
