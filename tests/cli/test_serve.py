"""c2t serve: one line for what cannot be, one line when it serves, one when it ends."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from c2t.cli import shared
from c2t.cli.app import app
from c2t.models.loading.load import load_pair
from c2t.models.target.prefixes import LIMIT

REQUEST = {"model": "tiny", "prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0}
EVERYWHERE = "0.0.0.0"  # noqa: S104 - the warning of it is what is tested
SIMPLE = ["serve", "--pair", "tiny", "--policy", "chain:length=3"]
# The command line, whose third round waits for the end of the server to begin; the request in it gets all its time.
DRIVER = """if True:
    import itertools, math, threading
    from c2t.__main__ import main
    from c2t.serving import front, server, throughput
    server.GRACE, throughput.EVERY = 3600.0, math.inf
    ending, rounds = threading.Event(), itertools.count(1)
    step, close = server.BatchDecoder.step, front.AsyncFront.close
    def waiting(decoder):
        if next(rounds) >= 3:
            ending.wait()
        return step(decoder)
    def closing(front, *seconds):
        close(front, *seconds)
        ending.set()
    server.BatchDecoder.step, front.AsyncFront.close = waiting, closing
    main()
"""


@pytest.mark.parametrize(
    ("pair", "classifier", "policy"),
    [
        ("tiny", None, "budget"),
        ("smollm2", None, "budget:of=threshold:threshold=0.05,K=6,W=6,levels=3"),  # what the pair names
        ("smollm2", "its-classifier", "budget"),
        ("of-mine", "its-classifier", "c2t"),  # no prompts come with it to measure costs on
        ("of-mine", None, "threshold:threshold=0.1"),
    ],
)
def test_the_default_policy_is_a_budget_where_costs_can_be_measured(
    pair: str, classifier: str | None, policy: str
) -> None:
    assert shared.default_policy(replace(load_pair("tiny"), name=pair), classifier, for_server=True) == policy


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "256.0.0.1"], "cannot serve on 256.0.0.1, port 8000: "),
        (["--port", "65536"], "65535"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--max-rows", "0"], "--max-num-seqs"),  # its old name
        (["--api-key", ""], "--api-key"),
        (["--cors", "evil.example"], "'evil.example' is no origin: give one as http://localhost:3000, or *"),
        (["--prefix-memory", "-1"], "--prefix-memory"),
        (["--max-waiting", "0"], "--max-waiting"),  # every request waits for the next round
        (["--policy", "tree", "--port", "0"], "no policy is called 'tree'"),
        (["--policy", "plain", "--classifier", "tiny", "--port", "0"], "no policy here reads a classifier"),
    ],
)
def test_what_cannot_be_is_one_line(home: Path, options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, [*SIMPLE, *options])
    assert (done.exit_code, done.stdout) == (2, "")
    *progress, last = done.stderr.splitlines()
    assert said in last
    assert [line.split(";")[0] for line in progress] == ["loading the models", "tiny is loaded"][: len(progress)]


def test_a_start_that_fails_leaves_no_port_open(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    done = CliRunner().invoke(app, [*SIMPLE, "--policy", "tree", "--port", str(address[1])])
    assert done.exit_code == 2
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_its_options_are_read_without_the_imports_that_take_seconds() -> None:
    """By then its port answers."""
    code = "import sys, c2t.cli.program, c2t.cli.serve; sys.exit(str({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "set()\n"


@pytest.mark.slow
def test_its_first_answer_is_that_it_loads(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "c2t", *SIMPLE, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            answer = None
            while answer is None and running.poll() is None:
                with suppress(httpx.ConnectError):
                    answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=60)
            assert (answer.status_code, answer.json()) == (503, {"status": "loading"})
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 128 + signal.SIGTERM
        finally:
            running.kill()  # or a test that fails would wait for it
        first, last = running.stderr.read().splitlines()
    assert first == "loading the models; until they are there, every request is answered with 503"
    assert last == "c2t: stopped by SIGTERM: nothing has begun; run the command again"


def test_without_options_it_serves_this_machine_alone() -> None:
    options = {option.name: option.default for option in get_command(app).commands["serve"].params}
    assert (options["host"], options["prefix_memory"] * 2**20) == ("127.0.0.1", LIMIT)


def test_options_have_vllms_names_and_their_old_ones() -> None:
    options = {option.name: option for option in get_command(app).commands["serve"].params}
    assert options["max_num_seqs"].opts == ["--max-num-seqs", "--max-rows"]
    assert options["max_total_tokens"].opts == ["--max-total-tokens", "--max-tokens"]
    assert (options["max_num_seqs"].default, options["max_total_tokens"].default) == (16, 16384)
    assert options["api_key"].envvar == "C2T_API_KEY"


def test_a_taken_port_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["serve", "--pair", "no-such-pair", "--port", str(port)])
    assert done.exit_code == 2
    said = f"cannot serve on 127.0.0.1, port {port}: Address already in use; choose another, 0 for any port"
    assert done.stderr == f"c2t: {said}\n"


@pytest.mark.slow
@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_serves_until_a_signal_which_lets_running_requests_end(home: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", DRIVER, *SIMPLE, "--port", "0", "--host", EVERYWHERE, "--max-rows", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "C2T_HOME": str(home)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        try:
            line = running.stdout.readline()
            assert line.endswith("serves tiny with chain:length=3; Ctrl-C ends it\n")
            address = line.split()[0].replace(EVERYWHERE, "127.0.0.1") + "/completions"
            assert httpx.post(address, json={**REQUEST, "suffix": "x"}, timeout=60).status_code == 400
            asked = {**REQUEST, "max_tokens": 30, "stream": True}
            with httpx.stream("POST", address, json=asked, timeout=60) as answer:  # a busy machine is slow
                lines = answer.iter_lines()
                assert next(lines).startswith("data: {")
                running.send_signal(number)
                assert list(lines)[-2:] == ["data: [DONE]", ""]
            assert running.wait(60) == 128 + number
        finally:
            running.kill()  # or a test that fails would wait for it
        loading, loaded, packs, warned, refused, stopping, stopped = running.stderr.read().splitlines()
    assert loading == "loading the models; until they are there, every request is answered with 503"
    assert loaded == "tiny is loaded; preparing chain:length=3"
    assert packs == "a first text, which compiles and packs what is not yet"
    assert warned == f"{EVERYWHERE}: anyone who reaches this address can use it, without a password"
    assert refused.endswith(" 400 /v1/completions: c2t serve does not support suffix: leave it out")
    assert stopping.endswith("stopping: running requests (1) get 3600 s to end; Ctrl-C again ends them now")
    assert stopped == f"c2t: stopped by {number.name}: the server is down, and no request is left"
