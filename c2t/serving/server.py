"""The server: uvicorn on a socket, and an orderly end of the running requests."""

import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None

import uvicorn
from starlette.middleware.cors import CORSMiddleware

from c2t.batching import BatchDecoder
from c2t.decoder import SpeculativeDecoder
from c2t.serving.access import KeyRequired, NameRequired
from c2t.serving.app import make_app
from c2t.serving.connections import HALVES, Connection
from c2t.serving.front import LOG, AsyncFront
from c2t.serving.loading import HERE
from c2t.serving.metrics import Metrics
from c2t.serving.throughput import Throughput

GRACE = 10.0  # seconds that running requests get when the server is stopped
FILES = 128  # open files that are no connections: weights, libraries, logs, the event loop
OTHERS = 64  # connections beyond those of requests that run or wait: health, metrics, refusals


class Server(uvicorn.Server):
    """An OpenAI-compatible server of one pair and policy.

    listener: of `c2t.serving.loading.listen`. limits: those of `BatchDecoder`. name: of the model, by default the
    pair's. key: what clients must send as their API key. origins: of web pages that may call the server, "*" for all.
    `run` serves until SIGINT, SIGTERM or SIGHUP, or until `stop`.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        listener: socket.socket,
        name: str | None = None,
        key: str | None = None,
        origins: Sequence[str] = (),
        **limits: int,
    ):
        self.socket = listener
        host, port, *_ = listener.getsockname()
        self.address, self.here = f"http://{f'[{host}]' if ':' in host else host}:{port}", host in HERE
        self.metrics = Metrics()
        self.front = AsyncFront(BatchDecoder(decoder.pair, decoder.policy, **limits), self.metrics)
        self.metrics.watch(self.front, name)
        self.throughput = Throughput(self.metrics, self.front)
        app = make_app(decoder, self.front, self.metrics, name)
        if key is not None:
            app.add_middleware(KeyRequired, key=key)
        if self.here:
            app.add_middleware(NameRequired)
        if origins:  # the outermost: a page may read refusals, too
            allowed = {"allow_origins": origins, "allow_methods": ("GET", "POST"), "allow_headers": ("*",)}
            app.add_middleware(CORSMiddleware, **allowed, allow_private_network=True, expose_headers=("Retry-After",))
        config = uvicorn.Config(
            app,
            http=partial(Connection, {}),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=most_connections(
                self.front.decoder.max_rows + self.front.decoder.max_waiting + OTHERS + HALVES
            ),
            timeout_graceful_shutdown=int(GRACE) + 5,
        )
        super().__init__(config)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal or `stop`; returns when every request has been answered."""
        try:
            super().run(sockets or [self.socket])
        finally:
            self.front.close()

    def stop(self) -> None:
        """End the server, from any thread: running requests get GRACE seconds, new ones are refused."""
        self.front.close(GRACE)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn, which calls it ten times a second; also log the throughput."""
        if line := self.throughput.line():
            LOG.info(line)
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGHUP as uvicorn handles the others, unless it is ignored, as nohup wants it."""
        hangup = getattr(signal, "SIGHUP", None)  # Windows lacks it
        handled = hangup and threading.current_thread() is threading.main_thread()
        with super().capture_signals():
            if not handled or signal.getsignal(hangup) == signal.SIG_IGN:
                yield
                return
            before = signal.signal(hangup, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(hangup, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take the first signal as `stop`; a second one ends the running requests before the next round."""
        if self.should_exit:
            self.front.close()
            return
        running = self.front.decoder.running + self.front.decoder.waiting
        LOG.warning("stopping: running requests (%d) get %g s to end; Ctrl-C again ends them now", running, GRACE)
        self.front.close(GRACE)
        super().handle_exit(sig, frame)


def most_connections(wanted: int) -> int:
    """Return how many connections may be open: `wanted`, or what the system's limit of open files leaves, which is
    raised as far as it can be."""
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, min(wanted, soft - FILES))
    return wanted


def log_to_stderr() -> None:
    """Write a line for each problem and the throughput to stderr, with its time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    for logger, least in ((LOG, logging.INFO), (logging.getLogger("uvicorn.error"), logging.WARNING)):
        logger.addHandler(handler)
        logger.setLevel(least)
        logger.propagate = False
