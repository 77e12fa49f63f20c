"""OpenAI's API over HTTP: completions and chat completions, whole or streamed, health and metrics."""

import asyncio
import time
from functools import partial
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.telemetry import TelemetryConfig
from prometheus_client import CONTENT_TYPE_LATEST

from c2t import __version__
from c2t.batching import Full
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError, plain
from c2t.grammars.grammar import Grammar
from c2t.grammars.tool_calls import CallReader
from c2t.models.loading.chat_templates import dialogue
from c2t.serving.access import LimitedBody
from c2t.serving.answers import CHATS, COMPLETIONS, Choice, Form, Reply
from c2t.serving.fields import ChatCompletion, Completion, Fields
from c2t.serving.front import LOG, Answer, AsyncFront, Failed, ServerStopping
from c2t.serving.lengths import Checked, characters_of_a_token
from c2t.serving.logprobs import TokenBytes
from c2t.serving.metrics import Metrics
from c2t.serving.refusals import KINDS, RETRY_AFTER, Refusal, error_body, unsupported
from c2t.serving.structured import Compiler
from c2t.serving.tools import ToolPrompt, ToolUse
from c2t.verification.texts import new_text

ASKED = {"/v1/completions": "prompt", "/v1/chat/completions": "messages"}  # fields that errors of prompts are about
SILENT: TelemetryConfig = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)


def make_app(decoder: SpeculativeDecoder, front: AsyncFront, metrics: Metrics, name: str | None = None) -> FastAPI:
    """Return the application that serves a decoder by its front. name: of the model, by default the pair's."""
    return _Api(decoder, front, metrics, name or decoder.pair.name).app()


class _Api:
    def __init__(self, decoder: SpeculativeDecoder, front: AsyncFront, metrics: Metrics, name: str):
        self.decoder, self.front, self.metrics, self.name = decoder, front, metrics, name
        self.pair, self.since = decoder.pair, int(time.time())
        self.room = min(self.pair.target.max_positions, front.decoder.max_tokens)  # no request may have more tokens
        self.per_token = characters_of_a_token(self.pair.tokenizer)  # most characters of a token
        self.encoding = CapacityLimiter(2)  # prompts tokenized in parallel: a long one takes a core for a second
        self.tools = ToolPrompt(self.pair.tokenizer)
        self.compiler = Compiler(decoder.policy, self.pair.vocabulary)
        self.bytes_of = TokenBytes(self.pair.tokenizer)

    def app(self) -> FastAPI:
        # Its pages of documentation would load scripts from elsewhere.
        app = FastAPI(title="c2t", version=__version__, docs_url=None, redoc_url=None, telemetry=SILENT)
        app.add_middleware(LimitedBody)
        app.post("/v1/completions", response_model=None)(self.complete)
        app.post("/v1/chat/completions", response_model=None)(self.chat)
        app.get("/v1/models", response_model=None)(self.models)
        app.get("/v1/models/{name:path}", response_model=None)(self.model)
        app.api_route("/health", methods=["GET", "HEAD"], response_model=None)(self.health)
        app.get("/metrics", response_model=None)(self.show_metrics)
        for kind in KINDS:
            app.add_exception_handler(kind, self.problem)
        return app

    async def complete(self, fields: Completion, request: Request) -> Response:
        """Continue texts, or token ids."""
        self.check(fields)
        prompts = fields.prompts()
        for prompt in prompts:
            if isinstance(prompt, str):
                self.check_fits(prompt)
        self.check_count(len(prompts) * fields.choices, "prompt" if len(prompts) > 1 else "n")
        constraint = await self.constraint(fields)
        ids = await to_thread.run_sync(self.decoder.encode, prompts, False, limiter=self.encoding)
        return await self.answer(request, fields, ids, constraint, COMPLETIONS)

    async def chat(self, fields: ChatCompletion, request: Request) -> Response:
        """Answer a conversation."""
        self.check(fields)
        if not self.pair.template:
            raise Refusal(f"{self.name} has no chat template: use /v1/completions", "messages")
        self.check_count(fields.choices)
        use = fields.tool_use()
        constraint = await self.constraint(fields, use)
        make_ids = partial(
            dialogue,
            Checked(self.pair.tokenizer, self.check_fits),  # of the text that the template makes
            self.pair.template,
            self.tools.messages([message.plain() for message in fields.messages], use),
            tools=use.tools if use and self.tools.by_template else None,
            opened=fields.opened,
            continued=fields.continued,
            variables=fields.chat_template_kwargs,
        )
        ids = await to_thread.run_sync(make_ids, limiter=self.encoding)
        return await self.answer(request, fields, [ids], constraint, CHATS, use)

    async def models(self) -> dict[str, Any]:
        """List the one model."""
        return {"object": "list", "data": [await self.model(self.name)]}

    async def model(self, name: str) -> dict[str, Any]:
        """Describe the model."""
        self.check_model(name)
        described = {"id": self.name, "object": "model", "created": self.since, "owned_by": "c2t"}
        return {**described, "root": self.pair.name, "max_model_len": self.room}

    async def health(self) -> JSONResponse:
        """Report whether requests are taken."""
        alive = self.front.alive
        return JSONResponse({"status": "ok" if alive else "stopping"}, 200 if alive else 503)

    async def show_metrics(self) -> Response:
        """Show the counters."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def check(self, fields: Fields) -> None:
        """Raise Refusal for another model, for fields that are not served, and for no tokens."""
        self.check_model(fields.model)
        for name in fields.refused():
            raise unsupported(name)
        if fields.max_tokens == 0 and fields.prompt_logprobs_count is None:
            raise Refusal("max_tokens = 0: must be at least 1, unless echo is true", "max_tokens")

    def check_model(self, name: str) -> None:
        """Raise Refusal for a model that is not served."""
        if name != self.name:
            message = f"the model {name[:100]!r} does not exist here: this server has {self.name!r}"
            raise Refusal(message, "model", "model_not_found", 404)

    def check_count(self, texts: int, param: str = "n") -> None:
        """Raise Refusal, about the field `param`, for more texts than may ever wait, and Full for more than there is
        room for now."""
        decoder = self.front.decoder
        if texts > decoder.max_waiting:
            raise Refusal(f"{texts:,} texts in one request: at most {decoder.max_waiting:,} may wait", param)
        if decoder.waiting + texts > decoder.max_waiting:
            waiting = f"{decoder.waiting:,} requests are waiting, the limit is {decoder.max_waiting:,}"
            raise Full(f"{waiting}; try again later")

    def check_fits(self, text: str) -> None:
        """Raise Refusal for a text of so many characters that no request has room for its tokens."""
        if self.per_token and len(text) > self.room * self.per_token:
            least = -(-len(text) // self.per_token)
            raise Refusal(f"{len(text):,} characters are {least:,} tokens or more, the limit is {self.room:,}")

    async def constraint(self, fields: Fields, use: ToolUse | None = None) -> Grammar | None:
        """Return what the text must follow, compiled; None for a text that is free. With tools, it is what a text
        without calls must follow."""
        field = fields.constraint()
        answer = await self.compiler.compiled(*field) if field else None
        return await self.compiler.compiled("tools", partial(self.tools.grammar, use, answer)) if use else answer

    async def answer(
        self,
        request: Request,
        fields: Fields,
        prompts: list[list[int]],
        constraint: Grammar | None,
        form: Form,
        use: ToolUse | None = None,
    ) -> JSONResponse | StreamingResponse:
        """Submit the request and return its answer, or the stream of it."""
        answers = self.submit(
            fields, [ids for ids in prompts for _ in range(fields.choices)], constraint, form.new_tokens
        )
        echoes = [fields.echoed(number, ids, self.pair.tokenizer) for number, ids in enumerate(prompts)]
        field = fields.constraint()
        follows = "tools" if use else field and field[0].partition(".")[0]
        choices = [
            Choice(
                index,
                answer,
                new_text(self.pair.tokenizer, fields.stops(), self.decoder.eos, constraint is not None),
                CallReader(self.tools.frame, free=field is None and not use.required) if use else None,
                bool(use and use.named),
                None if fields.logprobs_count is None else form.writer(self.bytes_of),
                echoes[index // fields.choices],
            )
            for index, answer in enumerate(answers)
        ]
        reply = Reply(self.name, form, choices, prompts, self.decoder.policy.levels, follows)
        if fields.stream:
            events = reply.events(fields.with_usage, fields.with_usage_so_far)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        watching = asyncio.create_task(_close_when_gone(request, reply))
        try:
            return JSONResponse(await reply.whole())
        finally:
            watching.cancel()
            reply.close()

    def submit(
        self, fields: Fields, prompts: list[list[int]], constraint: Grammar | None, default: int
    ) -> list[Answer]:
        """Submit all texts of a request or, where one of them is refused, none. Each has a random stream of the seed,
        by its number."""
        sampling, answers = fields.sampling(self.pair.target.config.vocab_size), []
        scores = {"logprobs": fields.logprobs_count, "prompt_logprobs": fields.prompt_logprobs_count}
        try:
            for ids in prompts:
                new = fields.new_tokens
                if new is None:
                    new = max(1, min(default, self.front.decoder.room(len(ids))))
                eos = frozenset[int]() if fields.ignore_eos else None
                settings = {"sequence": len(answers), "eos": eos, "constraint": constraint, **scores}
                answers.append(self.front.generate(ids, new, sampling, **settings))
        except BaseException:
            for answer in answers:
                answer.close("refused")
            raise
        self.metrics.prompt_tokens.inc(sum(map(len, prompts)))
        return answers

    async def problem(self, request: Request, error: Exception) -> JSONResponse:
        """Return the answer to a request that is refused or lost, and log it in one line."""
        status, body = error_body(error)
        if isinstance(error, InputError) and status == 400 and not body["error"]["param"]:
            body["error"]["param"] = ASKED.get(request.url.path)
        if not isinstance(error, (Failed, ServerStopping)):
            self.metrics.ended("full" if isinstance(error, Full) else "refused")
        LOG.warning("%d %s: %s", status, plain(request.url.path), body["error"]["message"])
        headers = {"Retry-After": RETRY_AFTER} if status == 429 else getattr(error, "headers", None)
        return JSONResponse(body, status, headers)


async def _close_when_gone(request: Request, reply: Reply) -> None:
    """End a request when its client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    reply.close()
