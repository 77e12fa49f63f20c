"""Guards in front of the application: a body's length, the key of those who may ask, and the name that they ask."""

import hmac
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from c2t.errors import plain
from c2t.serving.front import LOG
from c2t.serving.loading import HERE
from c2t.serving.refusals import NAMED, Refusal, error_body

BODY = 2**20  # bytes of a request's body
OPEN = ("/health", "/metrics")  # what watches a server needs no key
WRONG_KEY = Refusal(
    "the API key is missing or wrong: send it as Authorization: Bearer KEY", code="invalid_api_key", status=401
)


class LimitedBody:
    """Refuse a body that is too long before all of it has arrived."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY:
                raise HTTPException(413, f"the body has more than {BODY:,} bytes")
            return message

        await self.app(scope, limited, send)


class KeyRequired:
    """Refuse requests without the API key, by status 401 and unread, except those of OPEN."""

    def __init__(self, app: ASGIApp, key: str):
        self.app, self.key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self._has_key(scope):
            await self.app(scope, receive, send)
            return
        await _refusal(WRONG_KEY, scope, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        # Compared in a time that does not depend on where they differ.
        return hmac.compare_digest(key.strip(), self.key) and scheme.lower() == b"bearer"


class NameRequired:
    """Refuse requests to names that are not this machine's own, unread: one that leads here is how a web page would
    reach it."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, name = dict(scope["headers"]).get(b"host", b"").decode("latin-1"), None
        with suppress(ValueError):
            name = urlsplit(f"//{host}").hostname
        if name in HERE:
            await self.app(scope, receive, send)
            return
        message = f"the server is called {', '.join(HERE)} here, not {host[:NAMED]!r}: use one of these, or --host"
        await _refusal(Refusal(message, code="invalid_host"), scope)(scope, receive, send)


def _refusal(refusal: Refusal, scope: Scope, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the answer to a request that is refused before it is read, and log it."""
    status, body = error_body(refusal)
    LOG.warning("%d %s: %s", status, plain(scope["path"]), refusal)
    return JSONResponse(body, status, headers)
