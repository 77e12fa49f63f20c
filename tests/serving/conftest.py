"""A server of each module's `decoder`, and its client."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from c2t.decoder import SpeculativeDecoder
from c2t.serving.server import Server
from tests.serving.served import client, serving


@pytest.fixture(scope="module")
def server(decoder: SpeculativeDecoder) -> Iterator[Server]:
    with serving(decoder) as running:
        yield running


@pytest.fixture(scope="module")
def ai(server: Server) -> OpenAI:
    return client(server)
