"""Tool calls as models write them: the frame around a call, the grammar of texts with calls, and their reader.

A text that may call tools is free text, then one call or several, then its end:

    text  OPENING  {"name": "NAME", "arguments": {...}}  BETWEEN  {"name": ...}  CLOSING

The frame is the model's own, found in its chat template, or FRAME. Where an answer has a schema, the text is JSON that
follows it, or calls without free text.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from c2t.errors import InputError, check_kind, short_repr
from c2t.grammars.guidance import LAYOUT, OPTIONS
from c2t.output.stoppable import overlap

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # of a tool, as OpenAI's API has it
MOST_CALLS = 16  # calls of one text


@dataclass(frozen=True)
class ToolFrame:
    """The texts around calls, and the keys of their JSON.

    opening, between, closing: before the first call, between two, after the last one. Without an opening a call is the
    whole text, and a text that does not begin with "{" is none. between: "" where a text has one call at most.
    specials: the ids of those parts of these texts that are single tokens of the tokenizer. json.dumps' layout.
    """

    opening: str
    between: str
    closing: str
    arguments_key: str = "arguments"
    specials: tuple[tuple[str, int], ...] = ()

    def tokenized(self, added: Mapping[str, int], special: Collection[str]) -> "ToolFrame":
        """Return the frame with its `specials`, by a tokenizer's added tokens with their ids, and its special ones."""
        text = self.opening + self.between + self.closing
        # What llguidance takes for special: also every added token in angle brackets.
        single = {name for name in added if name in special or (name.startswith("<") and name.endswith(">"))}
        return replace(self, specials=tuple(sorted((name, added[name]) for name in single if name in text)))

    def head(self, name: str) -> str:
        """Return a call's text up to its arguments."""
        return f'{{"name": {json.dumps(name)}, "{self.arguments_key}": '

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return the text of calls, each a name and its arguments."""
        texts = [self.head(name) + json.dumps(arguments, ensure_ascii=False) + "}" for name, arguments in calls]
        return self.opening + (self.between or "\n").join(texts) + self.closing

    def grammar(self, tools: Sequence[Mapping[str, Any]], required: bool, answer: str | None = None) -> str:
        """Return the grammar, in llguidance's Lark, of texts with up to MOST_CALLS calls of these tools, each with a
        name and the JSON schema of its parameters.

        required: the text is a call from its first token on. answer: else the JSON schema of a text without calls, None
        for free text. Raises InputError for a name that is none, or that two tools have, for parameters that are no
        schema of an object, and for an answer's schema where calls have no opening.
        """
        check_tools(tools)
        if answer is not None and not required and not self.opening:
            raise InputError("tools: a call of this model looks like an answer in JSON: leave one of both out")
        rules = [f"call: {' | '.join(f'call_{number}' for number in range(len(tools)))}"]
        for number, tool in enumerate(tools):
            schema = {**parameters_of(tool), "type": "object", OPTIONS: LAYOUT}
            rules.append(f'call_{number}: {_literal(self.head(tool["name"]))} arguments_{number} "}}"')
            rules.append(f"arguments_{number}: %json {json.dumps(schema, ensure_ascii=False)}")
        several = f" ({self._terms(self.between)} call){{0,{MOST_CALLS - 1}}}" if self.between else ""
        rules.append(f"calls: call{several} {self._terms(self.closing)}")
        called = f"start: {self._terms(self.opening)} calls"
        if answer is not None and not required:
            rules += [f"{called} | answer", f"answer: %json {json.dumps({**json.loads(answer), OPTIONS: LAYOUT})}"]
        else:
            rules += [called] if required else self._free_text()
        return "\n".join(["%llguidance {}", *rules, ""])

    def _free_text(self) -> list[str]:
        """Return the rules of a text that ends, or goes on with calls, where the opening has come."""
        first, *rest = self._parts(self.opening) or [""]
        if not first:
            return ["start: calls | TEXT?", r"TEXT: /[^{](.|\n)*/"]
        rest = " ".join(map(self._term, rest))
        if first in dict(self.specials):
            return [rf"start: TEXT? ({self._term(first)} {rest} calls)?", r"TEXT: /(.|\n)+/"]
        begins = re.escape(first).replace("/", r"\/").replace("\\\n", r"\n")
        return [f"start: begun {rest} calls | TEXT?", rf"begun[lazy]: /(.|\n)*{begins}/", r"TEXT: /(.|\n)+/"]

    def _terms(self, text: str) -> str:
        return " ".join(map(self._term, self._parts(text)))

    def _term(self, part: str) -> str:
        special = dict(self.specials).get(part)
        return _literal(part) if special is None else f"<[{special}]>"

    def _parts(self, text: str) -> list[str]:
        """Split a text at the special tokens in it."""
        names = "|".join(re.escape(name) for name, _ in self.specials)
        return [part for part in re.split(f"({names})", text) if part] if names else [text] * bool(text)


def _framed(begin: str, end: str) -> ToolFrame:
    """Return the frame of calls that each have a begin and an end."""
    return ToolFrame(begin, f"{end}\n{begin}", end)


FRAME = _framed("<tool_call>", "</tool_call>")
LLAMA = ToolFrame("", "", "", arguments_key="parameters")


def frame_of(template: str) -> ToolFrame | None:
    """Return the frame of a chat template that reads tools; None for one that does not, or not in a known way: known
    are Hermes' and Qwen's <tool_call>, Llama's JSON and Mistral's [TOOL_CALLS]."""
    if not re.search(r"\btools\b", template):
        return None
    if tag := re.search(r"<tool_call>(\\n|\n)?\{", template):
        line = "\n" if tag[1] else ""
        return _framed(f"<tool_call>{line}", f"{line}</tool_call>")
    if re.search(r'\{\\?"name\\?": function name, \\?"parameters\\?"', template):
        return LLAMA
    if tag := re.search(r"\[TOOL_CALLS\]( ?)\[", template):
        return ToolFrame(f"[TOOL_CALLS]{tag[1]}[", ", ", "]")
    return None


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise InputError for tools that no grammar can have: see `ToolFrame.grammar`."""
    if not tools:
        raise InputError("tools: give one at least")
    names = [tool.get("name") for tool in tools]
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            said = short_repr(name)
            raise InputError(f"tools: a name is 1 to 64 of the characters a-z, A-Z, 0-9, _ and -, not {said}")
        if names.count(name) > 1:
            raise InputError(f"tools: two of them have the name {name!r}")
    for tool in tools:
        check_kind(f"tools: the parameters of {tool['name']}", parameters_of(tool), Mapping, "a JSON schema: a mapping")
        kind = parameters_of(tool).get("type", "object")
        if kind != "object":
            raise InputError(
                f"tools: the parameters of {tool['name']} must be an object's schema, not {short_repr(kind)}"
            )


def parameters_of(tool: Mapping[str, Any]) -> Any:
    """Return the schema of a tool's parameters, not checked yet; one without has none."""
    parameters = tool.get("parameters")
    return {"properties": {}, "additionalProperties": False} if parameters is None else parameters


class CallPiece(NamedTuple):
    """A part of a call: its number in the text, its name (with the first part only) and more of its arguments."""

    number: int
    name: str | None
    arguments: str


class CallReader:
    """Reads a text as it is generated, which follows `ToolFrame.grammar`: what is said, and the parts of calls.

    A text that does not follow the grammar is returned as it is. free: text may come before calls.
    """

    def __init__(self, frame: ToolFrame, free: bool = True):
        self.frame, self.text, self.calls = frame, "", 0
        self.head = re.compile(rf'\{{"name": ("(?:[^"\\]|\\.)*"), "{frame.arguments_key}": ')
        self.read = self._read_free if frame.opening and free else self._read_begin
        self.marks = tuple(name for name, _ in frame.specials)  # which no other text has
        self.depth, self.quoted, self.escaped = 0, False, False

    def add(self, text: str) -> Iterator[str | CallPiece]:
        """Yield what is complete with this part of the text."""
        self.text += text
        while self.text and (piece := self.read()) is not None:
            if piece:
                yield piece

    def end(self) -> Iterator[str]:
        """Yield what is left at the end of the text, unless it is a call's: its end, or a beginning whose arguments did
        not come. What else could begin so is yielded."""
        if self.text and not self._is_a_calls():
            yield self.text
        self.text = ""

    def _is_a_calls(self) -> bool:
        if self.read in (self._read_free, self._read_begin) and self.text.startswith(self.marks):
            return True
        if self.read == self._read_begin:  # what else follows the grammar is JSON, say an array
            return self.text not in ("{", "[", '"')
        return self.read == self._read_after or (self.read == self._read_head and self._begins_head())

    @property
    def inside(self) -> bool:
        """True in a call whose arguments have not ended."""
        return self.read == self._read_arguments

    # Each returns a piece, "" after a change of state, or None where it needs more of the text.

    def _read_begin(self) -> str | None:
        """Read the beginning of a text that either is a call or has none."""
        opening = self.frame.opening
        if len(self.text) <= len(opening) and opening.startswith(self.text):
            return None
        called = self.text.startswith(opening + "{")
        self.text = self.text[len(opening) * called :]
        self.read = self._read_head if called else self._read_rest
        return ""

    def _read_free(self) -> str | None:
        free, opening, after = self.text.partition(self.frame.opening)
        if opening:
            self.text, self.read = after, self._read_head
            return free
        waiting = overlap(free, self.frame.opening)
        self.text = free[len(free) - waiting :]
        return free[: len(free) - waiting] or None

    def _read_head(self) -> CallPiece | str | None:
        if match := self.head.match(self.text):
            self.text, self.read, self.calls = self.text[match.end() :], self._read_arguments, self.calls + 1
            return CallPiece(self.calls - 1, json.loads(match[1]), "")
        return None if self.text.startswith("{") or not self.text else self._give_up()

    def _begins_head(self) -> bool:
        """Return True if what is read so far can become a head."""
        head = f'{{"name": "a", "{self.frame.arguments_key}": '
        return any(self.head.fullmatch(self.text + head[cut:]) for cut in range(len(head)))

    def _read_arguments(self) -> CallPiece:
        """Read up to the end of the object: its last bracket outside of texts."""
        for at, character in enumerate(self.text):
            if self.quoted:
                self.quoted = self.escaped or character != '"'
                self.escaped = character == "\\" and not self.escaped
            elif character == '"':
                self.quoted = True
            elif character in "{[":
                self.depth += 1
            elif character in "]}":
                self.depth -= 1
                if self.depth == 0:
                    self.read = self._read_after
                    return self._arguments(at + 1)
        return self._arguments(len(self.text))

    def _arguments(self, length: int) -> CallPiece:
        piece, self.text = self.text[:length], self.text[length:]
        return CallPiece(self.calls - 1, None, piece)

    def _read_after(self) -> str | None:
        """Read the end of a call: either the way to the next one, or the closing."""
        between, closing = "}" + self.frame.between, "}" + self.frame.closing
        if self.frame.between and self.text.startswith(between):
            self.text, self.read = self.text[len(between) :], self._read_head
            return ""
        if self.frame.between and between.startswith(self.text):
            return None
        if self.text.startswith(closing):
            self.text, self.read = self.text[len(closing) :], self._read_rest
            return ""
        return None if closing.startswith(self.text) else self._give_up()

    def _read_rest(self) -> str:
        text, self.text = self.text, ""
        return text

    def _give_up(self) -> str:
        self.read = self._read_rest
        return ""


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
