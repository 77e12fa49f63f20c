"""The socket of a server, and its answers while it has no models: 503. It imports nothing that takes time."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from c2t.errors import InputError, one_line

HERE = ("127.0.0.1", "::1", "localhost")  # addresses and names of this machine that no other machine reaches
READ = 2**20  # bytes of a body that are read, without which the client would see a broken connection
ERROR = {"message": "the models are being loaded: try again", "type": "server_error", "param": None, "code": None}


def listen(host: str = HERE[0], port: int = 0) -> socket.socket:
    """Return a socket that listens there, at port 0 on any that is free; InputError where that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:
        numbered = isinstance(error, OSError) and error.errno in errno.errorcode
        why = os.strerror(error.errno) if numbered else one_line(error)  # Python's own text repeats the address
        raise InputError(f"cannot serve on {host}, port {port}: {why}; choose another, 0 for any port") from error


@contextmanager
def answering(listener: socket.socket) -> Iterator[None]:
    """Answer every request with 503, /health with `{"status": "loading"}`, until the block ends; later
    requests wait for the next server on this socket."""
    server = _LoadingServer(("", 0), _NotYet, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    thread = Thread(target=server.serve_forever, args=(0.05,), name="loading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


class _LoadingServer(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore a client that went away or sent no request: no text is lost."""


class _NotYet(BaseHTTPRequestHandler):
    timeout = 5.0  # seconds that a client may keep silent

    def do_GET(self) -> None:
        length = self.headers.get("Content-Length", "0")
        self.rfile.read(min(int(length[:10]), READ) if length.isdecimal() else 0)
        loading = self.path.partition("?")[0] == "/health"
        body = json.dumps({"status": "loading"} if loading else {"error": ERROR}).encode()
        self.send_response_only(503)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(body), "Retry-After": 1}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_POST = do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Log nothing: no request is lost."""
