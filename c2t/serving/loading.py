"""Answers of a server that has no models yet: 503, from the moment at which it listens."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

READ = 2**20  # bytes of a body that are read, without which the client would see a broken connection
ERROR = {"message": "the models are being loaded: try again", "type": "server_error", "param": None, "code": None}


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
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Log nothing: no request is lost."""
