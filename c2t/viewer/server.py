"""The page on this machine during decoding: rounds are server-sent events."""

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any

from c2t.errors import InputError, one_line

HOST = "127.0.0.1"  # no other machine reaches it
HTTP = 80
EVENTS = "/rounds"


class _PageServer(ThreadingHTTPServer):
    def handle_error(self, *_request: object) -> None:
        """Log nothing: a page was closed while it was sent."""


class LiveServer:
    """Server of one page and of the events that are sent to it; a context in which it runs.

    port 0: any that is free. InputError for a port that is taken.
    """

    def __init__(self, html: str, port: int = 0):
        self.html, self.events, self.more, self.ended = html.encode(), [], Condition(), False
        try:
            self.server = _PageServer((HOST, port), self._handler())
        except (OSError, OverflowError) as error:
            raise InputError(f"port {port}: {one_line(error)}; choose another, 0 for any that is free") from error
        self.server.daemon_threads = True
        self.address = f"http://{HOST}:{self.server.server_port}/"
        self.thread = Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> "LiveServer":
        self.thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event to every page that is open, and later to those that are opened then."""
        with self.more:
            self.events.append(json.dumps(event, separators=(",", ":"), allow_nan=False))
            self.more.notify_all()

    def end(self) -> None:
        """End the stream of events."""
        with self.more:
            self.ended = True
            self.more.notify_all()

    def wait_for_events(self, sent: int) -> tuple[list[str], bool]:
        """Wait for something new; return the events after the first `sent` ones, and True if they are the last."""
        with self.more:
            self.more.wait_for(lambda: len(self.events) > sent or self.ended)
            return self.events[sent:], self.ended

    def wait(self) -> None:
        """Wait for a signal."""
        while True:
            self.thread.join(3600)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        live = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                port = live.server.server_port
                portless = (HOST, "localhost") if port == HTTP else ()  # browsers leave that port out
                hosts = (f"{HOST}:{port}", f"localhost:{port}", *portless)
                if self.headers.get("Host") not in hosts:  # a foreign name that resolves here
                    self.send_error(403)
                elif self.path == "/":
                    self._head("text/html; charset=utf-8")
                    self.wfile.write(live.html)
                elif self.path == EVENTS:
                    self._head("text/event-stream")
                    self._stream()
                else:
                    self.send_error(404)

            def _head(self, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()

            def _stream(self) -> None:
                last = self.headers.get("Last-Event-ID", "")  # sent by a page whose connection broke
                sent = int(last) + 1 if last.isascii() and last.isdigit() and len(last) < 10 else 0
                ended = False
                try:
                    while not ended:
                        new, ended = live.wait_for_events(sent)
                        for number, event in enumerate(new, sent):
                            self.wfile.write(f"id: {number}\ndata: {event}\n\n".encode())
                        sent += len(new)
                        self.wfile.write(b"event: end\ndata:\n\n" if ended else b"")
                        self.wfile.flush()
                except OSError:  # the page was closed
                    return

            def log_message(self, *_message: object) -> None:
                """Log nothing: the terminal belongs to the command."""

        return Handler
