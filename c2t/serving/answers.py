"""The answer to a request in OpenAI's form: its choices, whole or as a stream of events."""

import asyncio
import json
import secrets
import string
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, ClassVar

from c2t.costs.statistics import Statistics, total
from c2t.grammars.tool_calls import CallPiece, CallReader
from c2t.output.stoppable import StoppableText
from c2t.serving.front import Answer, Failed, ServerStopping
from c2t.serving.logprobs import ChatLogprobs, CompletionLogprobs, LogprobsWriter
from c2t.serving.refusals import error_body

CALL_ID = string.ascii_letters + string.digits  # of which nine make a call's id: Mistral's templates take no other


class Choice:
    """One text of an answer, in the making.

    index: its number in the answer. reader: finds tool calls in the text, if there may be any. named: the request
    named the tool, whose call then ends as a text does. writer: of log-probabilities, if they were asked for. echo: a
    text that comes first. calls: those that it has read so far.
    """

    def __init__(
        self,
        index: int,
        answer: Answer,
        text: StoppableText,
        reader: CallReader | None = None,
        named: bool = False,
        writer: LogprobsWriter | None = None,
        echo: str = "",
    ):
        self.index, self.answer, self.text, self.reader, self.named = index, answer, text, reader, named
        self.writer, self.echo, self.scored = writer, echo, 0  # scored: tokens whose log-probabilities are written
        self.calls: list[dict[str, Any]] = []

    async def pieces(self) -> AsyncIterator[str | CallPiece]:
        """Yield the text's parts as they are generated; a stop string ends the request."""
        async for tokens in self.answer:
            if self.echo:
                yield self.echo
                self.echo = ""
            for piece in self._read(self.text.add(tokens)):
                yield piece
            if self.text.stopped:
                self.answer.close("stop")
                break
        for piece in self._read(self.text.end()):
            yield piece
        for text in self.reader.end() if self.reader else ():
            yield text

    def logprobs(self, tokens: int) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens up to this number that were not returned before, those of an
        echoed prompt first; None if nobody asked for them, or if there are none."""
        if self.writer is None:
            return None
        values = [*(self.answer.prompt_logprobs or ()), *(self.answer.logprobs or ())[:tokens]]
        new, self.scored = values[self.scored :], len(values)
        return self.writer(new) if new else None

    def _read(self, text: str) -> list[str | CallPiece]:
        if self.reader is None:
            return [text] if text else []
        pieces = list(self.reader.add(text))
        for piece in pieces:
            if isinstance(piece, CallPiece):
                if piece.name is not None:
                    self.calls.append({"id": call_id(), "function": {"name": piece.name, "arguments": ""}})
                self.calls[-1]["function"]["arguments"] += piece.arguments
        return pieces

    @property
    def finish(self) -> str | None:
        """Why the text ended: "tool_calls" only where the last one is whole, which a stop string may have cut."""
        reason = "stop" if self.text.stopped else self.answer.finish
        whole = self.calls and self.reader and not self.reader.inside
        return "tool_calls" if whole and not self.named and reason == "stop" else reason


class Form:
    """Names of one API's objects, and the content of their choices."""

    prefix = "cmpl"
    whole = chunk = "text_completion"
    first: ClassVar[dict[str, Any] | None] = None  # of a stream's choice before any text
    last: ClassVar[dict[str, Any]] = {"text": ""}
    new_tokens = 16  # at most, by default: as OpenAI's
    writer: ClassVar[type[CompletionLogprobs | ChatLogprobs]] = CompletionLogprobs

    def content(self, text: str, choice: Choice) -> dict[str, Any]:
        """Return a choice that has ended."""
        return {"text": text}

    def piece(self, piece: str | CallPiece, choice: Choice) -> dict[str, Any]:
        """Return what a stream adds to a choice."""
        return {"text": piece}


class ChatForm(Form):
    """The form of answers to a conversation."""

    prefix = "chatcmpl"
    whole, chunk = "chat.completion", "chat.completion.chunk"
    first: ClassVar[dict[str, Any] | None] = {"delta": {"role": "assistant", "content": ""}}
    last: ClassVar[dict[str, Any]] = {"delta": {}}
    new_tokens = 1024  # OpenAI has no limit
    writer: ClassVar[type[CompletionLogprobs | ChatLogprobs]] = ChatLogprobs

    def content(self, text: str, choice: Choice) -> dict[str, Any]:
        """See `Form.content`."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if choice.calls:
            message["content"] = text or None
            message["tool_calls"] = [{"type": "function", **call} for call in choice.calls]
        return {"message": message}

    def piece(self, piece: str | CallPiece, choice: Choice) -> dict[str, Any]:
        """See `Form.piece`; a call's name comes with its first piece."""
        if isinstance(piece, str):
            return {"delta": {"content": piece}}
        call: dict[str, Any] = {"index": piece.number, "function": {"arguments": piece.arguments}}
        if piece.name is not None:
            call |= {"id": choice.calls[piece.number]["id"], "type": "function"}
            call["function"]["name"] = piece.name
        return {"delta": {"tool_calls": [call]}}


COMPLETIONS, CHATS = Form(), ChatForm()


class Reply:
    """The answer to one request. choices: all of its texts, which are being generated. follows: the field that
    constrains them."""

    def __init__(
        self,
        model: str,
        form: Form,
        choices: Sequence[Choice],
        prompts: Sequence[Sequence[int]],
        depth: int,
        follows: str | None = None,
    ):
        self.form, self.choices, self.prompts, self.depth = form, choices, prompts, depth
        self.follows = follows
        self.shared = {"id": f"{form.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    async def whole(self) -> dict[str, Any]:
        """Wait for all texts and return the answer."""
        texts = [""] * len(self.choices)
        try:
            async with aclosing(merged(self.choices)) as pieces:
                async for choice, piece, _ in pieces:
                    if isinstance(piece, str):
                        texts[choice.index] += piece
        except Failed as error:
            raise self._named(error) from error
        choices = [
            _numbered(choice, self.form.content(texts[choice.index], choice), choice.text.tokens, choice.finish)
            for choice in self.choices
        ]
        return {**self.shared, "object": self.form.whole, "choices": choices, "usage": self.usage, **self.metrics}

    async def events(self, with_usage: bool, continuous: bool = False) -> AsyncIterator[str]:
        """Yield the events of a stream: the texts' pieces, why each ended, and the usage if `with_usage`; with the
        usage so far in each event if `continuous`."""

        def chunk(choices: list[dict[str, Any]], more: Mapping[str, Any] = MappingProxyType({})) -> str:
            usage = {"usage": self.usage if continuous else None} if with_usage else {}
            return _event({**self.shared, "object": self.form.chunk, "choices": choices, **usage, **more})

        try:
            for choice in self.choices if self.form.first else ():
                yield chunk([_numbered(choice, self.form.first)])
            async with aclosing(merged(self.choices)) as pieces:
                async for choice, piece, tokens in pieces:
                    what = self.form.last if piece is None else self.form.piece(piece, choice)
                    yield chunk([_numbered(choice, what, tokens, choice.finish if piece is None else None)])
            if with_usage:
                yield chunk([], {"usage": self.usage, **self.metrics})
        except (Failed, ServerStopping) as error:
            yield _event(error_body(self._named(error))[1])
            return
        finally:
            self.close()
        yield "data: [DONE]\n\n"

    def close(self) -> None:
        """End the texts that have not ended."""
        for choice in self.choices:
            choice.answer.close()

    def _named(self, error: Exception) -> Exception:
        """Return an error with the field at fault: a text that cannot go on cannot follow its constraint."""
        lasting = isinstance(error, Failed) and error.lasting
        return Failed(str(error), lasting, self.follows) if lasting else error

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens of the prompts and of the texts."""
        old, new = sum(map(len, self.prompts)), sum(choice.text.tokens for choice in self.choices)
        firsts = self.choices[:: len(self.choices) // len(self.prompts)]  # of several texts, each prompt counts once
        cached = {"cached_tokens": sum(choice.answer.cached for choice in firsts)}
        counts = {"prompt_tokens": old, "completion_tokens": new, "total_tokens": old + new}
        return {**counts, "prompt_tokens_details": cached}

    @property
    def metrics(self) -> dict[str, Any]:
        """vLLM's figures of speculative decoding, over all texts, where anything may be drafted."""
        if not self.depth:
            return {}
        rounds = total(choice.answer.statistics for choice in self.choices)
        return {"metrics": {"speculative_decoding": acceptance(rounds, self.depth)}}


def acceptance(rounds: Statistics, depth: int) -> dict[str, Any]:
    """Return the acceptance of drafted tokens under vLLM's names; a round that drafted nothing is none.

    depth: of a policy's deepest tree. The histogram has the number of rounds that accepted 0, 1, 2, ... drafted tokens.
    """
    drafted = [verified - 1 for verified in rounds.verified if verified > 1]
    accepted = [count for count, verified in zip(rounds.accepted, rounds.verified, strict=True) if verified > 1]
    histogram = [accepted.count(count) for count in range(max(accepted, default=-1) + 1)]
    return {
        "mean_acceptance_length": 1 + sum(accepted) / max(1, len(accepted)),
        "draft_acceptance_rate": sum(accepted) / max(1, sum(drafted)),
        "acceptance_histogram": histogram,
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "num_spec_tokens": max(depth, *accepted, 0),  # what a grammar forces goes deeper than a policy's levels
    }


async def merged(choices: Sequence[Choice]) -> AsyncGenerator[tuple[Choice, str | CallPiece | None, int], None]:
    """Yield the pieces of several texts as they come, each with the number of tokens that its text then has, and None
    at the end of each text; the first error ends all."""
    inbox: asyncio.Queue[tuple[Choice, str | CallPiece | Exception | None, int]] = asyncio.Queue()

    async def read(choice: Choice) -> None:
        try:
            async for piece in choice.pieces():
                inbox.put_nowait((choice, piece, choice.text.tokens))
            inbox.put_nowait((choice, None, choice.text.tokens))
        except Exception as error:  # noqa: BLE001 - raised below
            inbox.put_nowait((choice, error, 0))

    reading = [asyncio.create_task(read(choice)) for choice in choices]
    try:
        left = len(choices)
        while left:
            choice, piece, tokens = await inbox.get()
            if isinstance(piece, Exception):
                raise piece
            left -= piece is None
            yield choice, piece, tokens
    finally:
        for task in reading:
            task.cancel()


def call_id() -> str:
    """Return a new id of a tool call."""
    return "".join(secrets.choice(CALL_ID) for _ in range(9))


def _numbered(choice: Choice, what: Mapping[str, Any], tokens: int = 0, finish: str | None = None) -> dict[str, Any]:
    """Return a choice, or a part of it up to so many tokens."""
    return {"index": choice.index, **what, "logprobs": choice.logprobs(tokens), "finish_reason": finish}


def _event(what: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(what)}\n\n"
