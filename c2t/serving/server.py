"""The server: a socket, uvicorn, and an end in which requests are not cut off."""

import errno
import logging
import os
import socket
import sys
from types import FrameType

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware

from c2t.batching import BatchDecoder
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError, one_line
from c2t.serving.app import make_app
from c2t.serving.front import LOG, AsyncFront
from c2t.serving.metrics import Metrics

LOOPBACK = ("127.0.0.1", "localhost", "::1")
GRACE = 10.0  # seconds that running requests get when the server is stopped
OTHERS = 64  # connections beyond those of requests that run or wait


class Server(uvicorn.Server):
    """An OpenAI-compatible server of one pair and policy.

    limits: those of `BatchDecoder`. port 0: any that is free. InputError for an address that cannot be bound, which is
    said before anything else happens. `run` serves until SIGINT or SIGTERM, or until `stop`.
    """

    def __init__(self, decoder: SpeculativeDecoder, host: str = LOOPBACK[0], port: int = 0, **limits: int):
        self.socket = bind(host, port)
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.socket.getsockname()[1]}"
        metrics = Metrics()
        self.front = AsyncFront(BatchDecoder(decoder.pair, decoder.policy, **limits), metrics)
        metrics.watch(self.front)
        app = make_app(decoder, self.front, metrics)
        if host in LOOPBACK:  # a name that was made to lead here, so that a web page reaches this machine
            app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK), www_redirect=False)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Hear the first signal as `stop`, and end at once with the second SIGINT."""
        if not self.should_exit:
            running = self.front.decoder.running + self.front.decoder.waiting
            LOG.warning("stopping: running requests (%d) get %g s to end; Ctrl-C again cuts them off", running, GRACE)
        self.front.close(GRACE)
        super().handle_exit(sig, frame)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; InputError where that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:
        known = isinstance(error, OSError) and error.errno in errno.errorcode
        why = os.strerror(error.errno) if known else one_line(error)  # Python adds the address, which stands here
        raise InputError(f"cannot serve on {host}, port {port}: {why}; choose another, 0 for any port") from error


def log_to_stderr() -> None:
    """Write a line for each problem to stderr, with its time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    for logger in (LOG, logging.getLogger("uvicorn.error")):
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
