"""Guards in front of the application: a body's length, and the key of those who may ask."""

import hmac

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from c2t.errors import plain
from c2t.serving.front import LOG
from c2t.serving.refusals import Refusal, error_body

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
        LOG.warning("401 %s: %s", plain(scope["path"]), WRONG_KEY)
        status, body = error_body(WRONG_KEY)
        answer = JSONResponse(body, status, {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        # Compared in a time that does not depend on where they differ.
        return hmac.compare_digest(key.strip(), self.key) and scheme.lower() == b"bearer"
