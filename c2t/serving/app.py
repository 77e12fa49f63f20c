"""OpenAI's API over HTTP: completions and chat completions, whole or streamed, health and metrics."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.telemetry import TelemetryConfig
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from c2t import __version__
from c2t.batching import Full
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError, plain
from c2t.models.loading.chat_templates import dialogue
from c2t.output.stoppable import StoppableText
from c2t.serving.fields import ChatCompletion, Completion, Fields
from c2t.serving.front import LOG, Answer, AsyncFront, Failed, ServerStopping
from c2t.serving.lengths import Checked, characters_of_a_token
from c2t.serving.metrics import Metrics

BODY = 2**20  # bytes of a request's body
COMPLETION = 16  # most new tokens of a completion by default: OpenAI's default
CHAT = 1024  # most new tokens of a chat by default: OpenAI has no limit
SILENT: TelemetryConfig = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
RETRY_AFTER = "1"  # seconds to wait before sending a request again that found the queue full


class Refusal(InputError):
    """A request that is not served. param: the field at fault; code: OpenAI's word for the reason."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class Wording(NamedTuple):
    """Names of one API's objects, and the content of their choices."""

    prefix: str
    whole: str
    chunk: str
    text: Callable[[str], dict[str, Any]]
    piece: Callable[[str], dict[str, Any]]
    first: tuple[dict[str, Any], ...]  # choices of a stream before any text
    last: dict[str, Any]


COMPLETIONS = Wording(
    prefix="cmpl",
    whole="text_completion",
    chunk="text_completion",
    text=lambda text: {"text": text},
    piece=lambda text: {"text": text},
    first=(),
    last={"text": ""},
)
CHATS = Wording(
    prefix="chatcmpl",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    text=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    piece=lambda text: {"delta": {"content": text}},
    first=({"delta": {"role": "assistant", "content": ""}},),
    last={"delta": {}},
)


def make_app(decoder: SpeculativeDecoder, front: AsyncFront, metrics: Metrics) -> FastAPI:
    """Return the application that serves a decoder by its front."""
    return _Api(decoder, front, metrics).app()


class _Api:
    def __init__(self, decoder: SpeculativeDecoder, front: AsyncFront, metrics: Metrics):
        self.decoder, self.front, self.metrics = decoder, front, metrics
        self.pair, self.name, self.since = decoder.pair, decoder.pair.name, int(time.time())
        self.room = min(self.pair.target.max_positions, front.decoder.max_tokens)  # no request may have more tokens
        self.per_token = characters_of_a_token(self.pair.tokenizer)  # most characters of a token
        self.encoding = CapacityLimiter(2)  # prompts tokenized in parallel: a long one takes a core for a second

    def app(self) -> FastAPI:
        # Its pages of documentation would load scripts from elsewhere.
        app = FastAPI(title="c2t", version=__version__, docs_url=None, redoc_url=None, telemetry=SILENT)
        app.add_middleware(_LimitedBody)
        app.post("/v1/completions", response_model=None)(self.complete)
        app.post("/v1/chat/completions", response_model=None)(self.chat)
        app.get("/v1/models", response_model=None)(self.models)
        app.get("/health", response_model=None)(self.health)
        app.get("/metrics", response_model=None)(self.show_metrics)
        for kind in (RequestValidationError, HTTPException, InputError, Failed, ServerStopping):
            app.add_exception_handler(kind, self.problem)
        return app

    async def complete(self, fields: Completion, request: Request) -> Response:
        """Continue a text, or token ids."""
        self.check(fields)
        if isinstance(fields.prompt, str):
            self.check_fits(fields.prompt)
        [ids] = await to_thread.run_sync(self.decoder.encode, [fields.prompt], False, limiter=self.encoding)
        return await self.answer(request, fields, ids, COMPLETION, COMPLETIONS)

    async def chat(self, fields: ChatCompletion, request: Request) -> Response:
        """Answer a conversation."""
        self.check(fields)
        if not self.pair.template:
            raise Refusal(f"the pair {self.name} has no chat template: use /v1/completions", "messages")
        messages = [message.plain() for message in fields.messages]
        tokenizer = Checked(self.pair.tokenizer, self.check_fits)  # of the text that the template makes
        ids = await to_thread.run_sync(dialogue, tokenizer, self.pair.template, messages, limiter=self.encoding)
        return await self.answer(request, fields, ids, CHAT, CHATS)

    async def models(self) -> dict[str, Any]:
        """List the one model."""
        model = {"id": self.name, "object": "model", "created": self.since, "owned_by": "c2t"}
        return {"object": "list", "data": [model]}

    async def health(self) -> JSONResponse:
        """Report whether requests are taken."""
        alive = self.front.alive
        return JSONResponse({"status": "ok" if alive else "stopping"}, 200 if alive else 503)

    async def show_metrics(self) -> Response:
        """Show the counters."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def check(self, fields: Fields) -> None:
        """Raise Refusal for another model and for fields that are not served."""
        if fields.model != self.name:
            message = f"the model {fields.model[:100]!r} does not exist here: this server has {self.name!r}"
            raise Refusal(message, "model", "model_not_found", 404)
        for name in fields.refused():
            raise Refusal(f"{name} is not served, and would change the text: leave it out", name, "unsupported_value")

    def check_fits(self, text: str) -> None:
        """Raise Refusal for a text of so many characters that no request has room for its tokens."""
        if self.per_token and len(text) > self.room * self.per_token:
            least = -(-len(text) // self.per_token)
            raise Refusal(f"{len(text):,} characters are {least:,} tokens or more, the limit is {self.room:,}")

    async def answer(
        self, request: Request, fields: Fields, ids: list[int], default: int, wording: Wording
    ) -> JSONResponse | StreamingResponse:
        """Submit the request and return its answer, or the stream of it."""
        new = fields.new_tokens
        if new is None:
            new = max(1, min(default, self.front.decoder.room(len(ids))))
        answer = self.front.generate(ids, new, fields.sampling())
        self.metrics.prompt_tokens.inc(len(ids))
        output = AnswerText(answer, StoppableText(self.pair.tokenizer, fields.stops()), len(ids))
        shared = {"id": f"{wording.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.name}
        if fields.stream:
            events = self.stream(output, shared, wording, fields.with_usage)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        watching = asyncio.create_task(_close_when_gone(request, answer))
        try:
            text = "".join([piece async for piece in output.pieces()])
        finally:
            watching.cancel()
        choice = _choice(wording.text(text), output.finish)
        return JSONResponse({**shared, "object": wording.whole, "choices": [choice], "usage": output.usage})

    async def stream(
        self, output: "AnswerText", shared: dict[str, Any], wording: Wording, with_usage: bool
    ) -> AsyncIterator[str]:
        """Yield the events of an answer: its pieces, why it ended, and its usage if `with_usage`."""
        usage = {"usage": None} if with_usage else {}

        def chunk(choices: list[dict[str, Any]], usage: dict[str, Any] = usage) -> str:
            return _event({**shared, "object": wording.chunk, "choices": choices, **usage})

        try:
            for first in wording.first:
                yield chunk([_choice(first)])
            async for piece in output.pieces():
                yield chunk([_choice(wording.piece(piece))])
            yield chunk([_choice(wording.last, output.finish)])
            if with_usage:
                yield chunk([], {"usage": output.usage})
        except (Failed, ServerStopping) as error:
            yield _event(self.error_body(error)[1])
            return
        finally:
            output.answer.close()
        yield "data: [DONE]\n\n"

    async def problem(self, request: Request, error: Exception) -> JSONResponse:
        """Return the answer to a request that is refused or lost, and log it in one line."""
        status, body = self.error_body(error)
        if not isinstance(error, (Failed, ServerStopping)):
            self.metrics.ended("full" if isinstance(error, Full) else "refused")
        LOG.warning("%d %s: %s", status, plain(request.url.path), body["error"]["message"])
        return JSONResponse(body, status, {"Retry-After": RETRY_AFTER} if status == 429 else None)

    def error_body(self, error: Exception) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of an error, in OpenAI's form."""
        param, code, kind = getattr(error, "param", None), getattr(error, "code", None), "invalid_request_error"
        match error:
            case Full():
                status, message, kind, code = 429, str(error), "rate_limit_error", "rate_limit_exceeded"
            case RequestValidationError():
                status, (message, param) = 400, _first(error)
            case HTTPException():
                status, message = error.status_code, str(error.detail)
            case Failed() | ServerStopping():
                status, message, kind = 500 if isinstance(error, Failed) else 503, str(error), "server_error"
            case _:
                status, message = getattr(error, "status", 400), str(error)
        return status, {"error": {"message": plain(message), "type": kind, "param": param, "code": code}}


class AnswerText(NamedTuple):
    """An answer that becomes a text."""

    answer: Answer
    text: StoppableText
    prompt_tokens: int

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the text's parts as they are generated; a stop string ends the request."""
        async for tokens in self.answer:
            if piece := self.text.add(tokens):
                yield piece
            if self.text.stopped:
                self.answer.close("stop")
                return
        if piece := self.text.end():
            yield piece

    @property
    def finish(self) -> str | None:
        """Why the text ended."""
        return "stop" if self.text.stopped else self.answer.finish

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the prompt and of the text."""
        new = self.text.tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": new, "total_tokens": self.prompt_tokens + new}


class _LimitedBody:
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


async def _close_when_gone(request: Request, answer: Answer) -> None:
    """End a request when its client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    answer.close()


def _choice(what: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, **what, "logprobs": None, "finish_reason": finish}


def _event(what: dict[str, Any]) -> str:
    return f"data: {json.dumps(what)}\n\n"


def _first(error: RequestValidationError) -> tuple[str, str | None]:
    """Return the first error in a body, and its field."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"the body is no JSON: {first['ctx']['error']} at character {first['loc'][-1]}", None
    field = [str(part) for part in first["loc"][1:]]
    if not field:
        return "the body must be a JSON object, sent as Content-Type: application/json", None
    return f"{'.'.join(field)}: {first['msg']}", field[0]
