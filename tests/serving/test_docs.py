"""The commands of docs/serving.md, run as they stand there but for the port."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import load_pair
from c2t.policies import Eagle2
from c2t.serving.fields import REFUSED
from c2t.serving.server import Server
from tests.serving.served import metrics, serving

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
WORDED, STREAMED, WATCHED = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
[CLIENT] = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The tiny pair, under the name of the page's and with a chat template."""
    pair = replace(load_pair("tiny"), name="smollm2", template="chat")
    pair.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with serving(SpeculativeDecoder(pair, Eagle2(K=3, levels=3, N=8))) as running:
        yield running


def shell(commands: str, server: Server) -> str:
    """Return what the commands write."""
    commands = commands.replace("http://127.0.0.1:8000", server.address).replace("curl ", "curl -sS ")
    done = subprocess.run([shutil.which("bash"), "-ec", commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_curl
@pytest.mark.slow
def test_curl(server: Server) -> None:
    answer = json.loads(shell(WORDED, server))
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 32
    *events, end = [line.removeprefix("data: ") for line in shell(STREAMED, server).splitlines() if line]
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events)
    assert end == "[DONE]"
    watched = shell(WATCHED, server)
    assert '"smollm2"' in watched
    assert '{"status":"ok"}' in watched
    assert "c2t_requests_total{" in watched


def test_the_client_of_the_page_gets_json_and_a_call(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    exec(CLIENT.replace("http://127.0.0.1:8000", server.address), {"__name__": "page"})  # noqa: S102 - our own page
    parsed, calls = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"name=.* inhabitants=\d+", parsed)
    assert "name='weather'" in calls


def test_the_page_names_every_metric_and_only_refused_fields(server: Server) -> None:
    names = {name.partition(".")[0] for name in metrics(server)}
    found = {re.sub(r"(_seconds)_(sum|count)$", r"\1", name) for name in names if not name.endswith("_created")}
    assert set(re.findall(r"`(c2t_\w+)", PAGE)) == {name for name in found if name.startswith("c2t_")}
    assert set(re.findall(r"`(vllm:\w+)", PAGE)) <= found
    [refused] = re.findall(r"What else would change the text \((.*?)\)", PAGE)
    assert set(re.findall(r"`(\w+)`", refused)) <= set(REFUSED)
