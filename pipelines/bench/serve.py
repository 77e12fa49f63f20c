"""Load test of `c2t serve`: requests of mixed lengths at random times, of which some are cancelled and some malformed.

    python -m pipelines.bench serve [--policy POLICY] [--json data/results/serve.jsonl]

Each policy, and plain decoding, serves the same requests by a process of its own. Requests arrive as a Poisson process,
and a limited number of them run concurrently. Half of them are greedy, the others sampled at T = 1 with a seed. The
command fails unless every refusal is the expected one, nothing else fails, the server's metrics agree with its clients,
its log holds no traceback, and every text is that of plain decoding of that request alone.
"""

import asyncio
import json as jsons
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import httpx
import numpy as np
import psutil
import typer
from prometheus_client.parser import text_string_to_metric_families

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import Pair, load_pair
from c2t.output.progress import progress_bar
from c2t.policies.plain import Plain
from c2t.policies.spec import describe
from c2t.replay.prompts import default_prompts, read_prompts, spread
from c2t.storage.paths import DEFAULT_PAIR
from pipelines import terminal
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.policy import PolicyText, policy_of
from pipelines.options import PairName

LEAST_TOKENS = 4  # new tokens of the shortest texts
EVERY = 0.25  # seconds between two looks at the server's memory
PATIENCE = 30.0  # seconds until every row must be free after the last request
MIB = 2**20

# Bodies that are refused, and the status that they get.
MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b'{"model": ', 400),
    (b'{"model": "no-such-model", "prompt": "a"}', 404),
    (b'{"model": "MODEL", "prompt": "a", "suffix": "b"}', 400),
    (b'{"model": "MODEL", "prompt": "a", "max_tokens": 1000000}', 400),
    (b'{"model": "MODEL", "prompt": "' + b"a" * MIB + b'"}', 413),
)


class Planned(NamedTuple):
    """A request to come. after: seconds since the one before it. pieces: after so many of them the client goes away;
    None reads to the end. malformed: sent instead of the request."""

    after: float
    prompt: list[int]
    new_tokens: int
    temperature: float
    seed: int
    pieces: int | None = None
    malformed: tuple[bytes, int] | None = None

    def body(self, model: str) -> bytes:
        """Return the body to send."""
        if self.malformed:
            return self.malformed[0].replace(b"MODEL", model.encode())
        fields = {"prompt": self.prompt, "max_tokens": self.new_tokens, "temperature": self.temperature}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return jsons.dumps({"model": model, **fields, "seed": self.seed, **stream}).encode()


class Seen(NamedTuple):
    """The answer that a client saw.

    outcome: how the request ended, in the words of the server's metrics, or what went wrong. first: seconds to the
    first piece; token: seconds for each further token.
    """

    outcome: str
    text: str = ""
    tokens: int = 0
    first: float | None = None
    token: float | None = None


class Load(NamedTuple):
    """The requests of a run, how many run concurrently, and the text of each alone."""

    model: str
    requests: list[Planned]
    concurrency: int
    alone: list[str]


def plan(
    prompts: Sequence[list[int]],
    count: int,
    new_tokens: int,
    rate: float,
    cancelled: float,
    malformed: float,
    seed: int,
) -> list[Planned]:
    """Return requests in their order. cancelled, malformed: shares of them; rate: arrivals a second."""
    chance = random.Random(seed)
    kinds = ["cancelled"] * round(count * cancelled) + ["malformed"] * round(count * malformed)
    kinds += ["whole"] * (count - len(kinds))
    chance.shuffle(kinds)
    requests = []
    for number, kind in enumerate(kinds):
        length = round(math.exp(chance.uniform(math.log(LEAST_TOKENS), math.log(new_tokens))))
        requests.append(
            Planned(
                chance.expovariate(rate),
                chance.choice(prompts),
                new_tokens if kind == "cancelled" else length,
                float(number % 2),
                number,
                chance.randrange(4) if kind == "cancelled" else None,
                MALFORMED[number % len(MALFORMED)] if kind == "malformed" else None,
            )
        )
    return requests


def texts_alone(pair: Pair, requests: Sequence[Planned]) -> Iterator[str]:
    """Yield the text of each request by plain decoding, "" for those without one."""
    decoder = SpeculativeDecoder(pair, Plain())
    for request in requests:
        whole = request.malformed is None and request.pieces is None
        how = {"max_new_tokens": request.new_tokens, "temperature": request.temperature, "seed": request.seed}
        yield decoder.generate([request.prompt], **how).text if whole else ""


@contextmanager
def serving(pair: str, draft: str, policy: str, max_rows: int) -> Iterator[tuple[str, int]]:
    """Run a server in a process of its own; yield its address and its number, and fail if its log has a traceback."""
    command = [sys.executable, *f"-m c2t serve --port 0 --max-num-seqs {max_rows}".split()]
    command += ["--pair", pair, "--draft", draft, "--policy", policy]
    with tempfile.TemporaryFile("w+") as log:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            address = running.stdout.readline().partition("/v1 ")[0]
            if address:
                yield address, running.pid
        finally:
            running.terminate()
            running.wait(60)
            log.seek(0)
            text = log.read()
    if not address or "Traceback" in text:
        raise SystemExit(f"the server of {policy} failed:\n{text[-4000:]}")


async def send(client: httpx.AsyncClient, request: Planned, model: str) -> Seen:
    """Send a request and read its answer."""
    start, times, text, tokens, finish = time.perf_counter(), [], "", 0, None
    how = {"content": request.body(model), "headers": {"Content-Type": "application/json"}}
    try:
        async with client.stream("POST", "/v1/completions", **how) as answer:
            if request.malformed:
                return Seen("refused" if answer.status_code == request.malformed[1] else f"status {answer.status_code}")
            if answer.status_code != 200:
                return Seen(f"status {answer.status_code}")
            pieces = 0
            async for line in answer.aiter_lines():
                if request.pieces is not None and pieces >= request.pieces:
                    return Seen("cancelled")
                if not line.startswith("data: {"):
                    continue
                event = jsons.loads(line.removeprefix("data: "))
                if "error" in event:
                    return Seen(event["error"]["message"])
                for choice in event["choices"]:
                    pieces, text, finish = pieces + 1, text + choice["text"], choice["finish_reason"]
                    times.append(time.perf_counter())
                tokens = (event["usage"] or {}).get("completion_tokens", tokens)
    except httpx.HTTPError as error:
        return Seen(type(error).__name__)
    first = times[0] - start if times else None
    return Seen(finish or "no end", text, tokens, first, (times[-1] - times[0]) / (tokens - 1) if tokens > 1 else None)


async def run_load(address: str, load: Load, process: psutil.Process, report: Any) -> tuple[list[Seen], list[int]]:
    """Send all requests at their times; return what was seen, and samples of the server's memory (bytes)."""
    room, memory, ended = asyncio.Semaphore(load.concurrency), [process.memory_info().rss], asyncio.Event()

    async def send_when_free(client: httpx.AsyncClient, request: Planned) -> Seen:
        async with room:
            seen = await send(client, request, load.model)
        report()
        return seen

    async def look() -> None:
        while not ended.is_set():
            await asyncio.sleep(EVERY)
            memory.append(process.memory_info().rss)

    looking = asyncio.create_task(look())
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=load.concurrency)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:
        tasks = []
        for request in load.requests:
            await asyncio.sleep(request.after)
            tasks.append(asyncio.create_task(send_when_free(client, request)))
        seen = await asyncio.gather(*tasks)
    ended.set()
    await looking
    return seen, memory


def metrics(address: str) -> dict[str, float]:
    """Return the server's counters, those of requests by their outcome."""
    families = text_string_to_metric_families(httpx.get(f"{address}/metrics").text)
    samples = [sample for family in families for sample in family.samples if "le" not in sample.labels]
    return {
        sample.labels.get("outcome", sample.name): sample.value for sample in samples if "_created" not in sample.name
    }


def measure(address: str, pid: int, load: Load, report: Any = lambda: None) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of a server under a load that it has not been under before, and all that was wrong."""
    start, before = time.perf_counter(), metrics(address)
    seen, memory = asyncio.run(run_load(address, load, psutil.Process(pid), report))
    seconds, end = time.perf_counter() - start, time.monotonic() + PATIENCE
    while (now := metrics(address))["c2t_requests_running"] + now["c2t_requests_waiting"] and time.monotonic() < end:
        time.sleep(EVERY)
    gained = {name: value - before[name] for name, value in now.items()}
    firsts, tokens = ([value for answer in seen if (value := getattr(answer, name))] for name in ("first", "token"))
    outcomes = Counter(answer.outcome for answer in seen)
    rounds = max(1.0, gained["c2t_rounds_total"])
    figures = {
        "outcomes": dict(outcomes),
        "texts_compared": sum(r.pieces is None and r.malformed is None for r in load.requests),
        "new_tokens": int(gained["c2t_new_tokens_total"]),
        "seconds": seconds,
        "tokens_per_second": gained["c2t_new_tokens_total"] / seconds,
        "first_token": percentiles(firsts),
        "per_token": percentiles(tokens),
        "memory": [round(size / MIB) for size in (memory[0], memory[len(memory) // 2], memory[-1], max(memory))],
        "tau": gained["c2t_accepted_tokens_total"] / rounds,
        "gamma": gained["c2t_verified_tokens_total"] / rounds,
    }
    return figures, [*wrong(seen, load), *miscounted(outcomes, gained, now)]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    return {name: 1e3 * float(np.percentile(values, at)) for name, at in (("p50", 50), ("p99", 99)) if values}


def wrong(seen: Sequence[Seen], load: Load) -> Iterator[str]:
    """Yield every unexpected answer."""
    for number, (request, answer, text) in enumerate(zip(load.requests, seen, load.alone, strict=True)):
        read_to_end = ("stop", "length") if request.pieces is None else ("cancelled", "stop")
        expected = ("refused",) if request.malformed else read_to_end
        if answer.outcome not in expected:
            yield f"request {number}: {answer.outcome} instead of {' or '.join(expected)}"
        elif expected == ("stop", "length") and answer.text != text:
            yield f"request {number}: {answer.text!r} instead of {text!r}"


def miscounted(outcomes: Counter, gained: dict[str, float], now: dict[str, float]) -> Iterator[str]:
    """Yield what the server counted otherwise than its clients. Where a client went away as its text ended, both may be
    right."""
    names = ("stop", "length", "cancelled", "refused", "full", "failed")
    counted = {name: int(gained[name]) for name in names}
    if sum(counted.values()) != sum(outcomes.values()) or counted["cancelled"] > outcomes["cancelled"]:
        yield f"the server counted {counted}, its clients {dict(outcomes)}"
    if counted["full"] or counted["failed"] or counted["refused"] != outcomes["refused"]:
        yield f"the server counted {counted}"
    if left := now["c2t_requests_running"] + now["c2t_requests_waiting"]:
        yield f"{left:.0f} requests are left after {PATIENCE:g} s"


def main(
    pair: PairName = DEFAULT_PAIR,
    policy: PolicyText = None,
    requests: Annotated[int, typer.Option(help="Requests to send.", min=1)] = 200,
    at_once: Annotated[int, typer.Option(help="Concurrent requests, and rows of the server.", min=1)] = 16,
    rate: Annotated[float, typer.Option(help="Requests that arrive in a second, on average.", min=0.01)] = 4.0,
    new_tokens: Annotated[int, typer.Option(help="New tokens of the longest texts.", min=LEAST_TOKENS)] = 128,
    cancelled: Annotated[float, typer.Option(help="Share of requests whose client goes away.", min=0, max=0.5)] = 0.1,
    malformed: Annotated[float, typer.Option(help="Share of requests that are refused.", min=0, max=0.5)] = 0.05,
    json: Json = None,
) -> None:
    """Put the server under load, with speculation and without."""
    loaded = load_pair(pair)
    prompts = spread([p for file in default_prompts(loaded.name, "bench") for p in read_prompts(file)], requests)
    ids = [conversation(loaded.tokenizer, loaded.template, prompt.turns[:1]) for prompt in prompts]
    planned = plan(ids, requests, new_tokens, rate, cancelled, malformed, seed=0)
    drafting, chosen = policy_of(loaded, policy, at_once)
    policies = [describe(Plain()), describe(chosen)]
    rows, bad = [], []
    with progress_bar("serve", "requests") as report:
        done = 0

        def advance(doing: str) -> None:
            nonlocal done
            done += 1
            report(done, requests * (1 + len(policies)), doing)

        alone = []
        for text in texts_alone(loaded, planned):
            alone.append(text)
            advance("each request alone")
        load = Load(loaded.name, planned, at_once, alone)
        for spec in policies:
            with serving(loaded.name, drafting.sources["draft"][0], spec, at_once) as (address, pid):
                warm_up(address, load)
                figures, problems = measure(address, pid, load, lambda spec=spec: advance(spec))
            rows.append({"policy": spec, **figures})
            bad += [f"{spec}: {problem}" for problem in problems]
    show(rows)
    if bad:
        raise SystemExit("\n".join([f"{len(bad)} things were wrong:", *bad[:20]]))
    configuration = {"pair": loaded.name, "sources": loaded.sources, "requests": requests, "at_once": at_once}
    configuration |= {"rate": rate, "max_new_tokens": new_tokens, "cancelled": cancelled, "malformed": malformed}
    append(json, "bench serve", rows, configuration | computed(loaded))


def warm_up(address: str, load: Load) -> None:
    """Send as many requests as run concurrently, so that the first ones measured find a warm server."""
    first = [r._replace(after=0.0) for r in load.requests if not r.malformed and r.pieces is None]
    brief = load._replace(requests=[r._replace(new_tokens=LEAST_TOKENS) for r in first[: load.concurrency]])
    asyncio.run(run_load(address, brief, psutil.Process(), lambda: None))


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the figures of each policy."""
    columns = [
        "policy",
        "tokens/s",
        "first token p50, p99 (ms)",
        "per token p50, p99 (ms)",
        "MiB begin, middle, end, most",
    ]
    cells = [
        [
            row["policy"],
            f"{row['tokens_per_second']:.1f}",
            *(", ".join(f"{value:.0f}" for value in row[name].values()) for name in ("first_token", "per_token")),
            ", ".join(map(str, row["memory"])),
            row["texts_compared"],
            ", ".join(f"{name} {count}" for name, count in row["outcomes"].items()),
        ]
        for row in rows
    ]
    terminal.table("c2t serve under load", [*columns, "texts compared", "requests"], cells)
