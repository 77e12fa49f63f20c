"""Constraints as users give them: a JSON schema, any JSON object, a regular expression, a grammar, a choice of texts,
or calls of tools."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from c2t.errors import InputError, check_kind, counted, short_repr
from c2t.grammars import guidance
from c2t.grammars.constraint import Matcher, Vocabulary
from c2t.grammars.tool_calls import FRAME, ToolFrame

LONGEST = 64 * 1024  # bytes of a schema, an expression or a grammar
DEEPEST = 32  # objects and lists inside of each other, in a schema
MULTIPLE = re.compile(r'"multipleOf"\s*:\s*([0-9][0-9.]*)')
# Least common multiple of a schema's `multipleOf`: the library has a state for each remainder, and limits do not count
# them. A million takes 10 seconds and 0.4 GB, and what takes all memory ends the process.
LARGEST_MULTIPLE = 10**5


@dataclass(frozen=True)
class Grammar:
    """A constraint on texts, made by one of the class methods; see `c2t.grammars`.

    JSON is laid out as `json.dumps` does it: ", " and ": ", and no other whitespace. Properties come in the order of
    the schema. A text ends by itself where the grammar is complete; one that meets its limit of tokens before is a
    prefix of a valid text. kind: "json", "regex", "lark". source: what it was made of, as text.

    Raises InputError for a source of over LONGEST bytes, a schema deeper than DEEPEST, and too large a `multipleOf`.
    """

    kind: str
    source: str

    def __post_init__(self):
        try:
            size = len(self.source.encode())
        except UnicodeEncodeError as error:
            raise InputError("a constraint holds half of a surrogate pair, which is no text") from error
        if size > LONGEST:
            raise InputError(f"a constraint of {counted(size)} bytes: at most {LONGEST:,} are served")
        if self.kind != "regex":
            _check_multiples(self.source)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str) -> "Grammar":
        """Return the constraint to JSON that follows a schema, given as a mapping or as text.

        InputError for a text that is no JSON. Keywords that the library does not know are refused by name, at use.
        """
        check_kind("schema", schema, Mapping | bool | str, "a JSON schema: a mapping, or its text")
        if isinstance(schema, str):
            schema = _parsed(schema)
            check_kind("schema", schema, Mapping | bool, "a JSON schema: an object")
        _check_depth(schema)
        if schema is False:
            raise InputError("no value follows the schema `false`")
        schema = {} if schema is True else {key: part for key, part in schema.items() if key != guidance.OPTIONS}
        try:
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"schema: {error}; give what JSON can hold") from error
        return cls("json", text)

    @classmethod
    def json_object(cls) -> "Grammar":
        """Return the constraint to any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Return the constraint to texts that match a regular expression as a whole (without lookarounds)."""
        check_kind("regex", pattern, str, "a regular expression")
        return cls("regex", pattern)

    @classmethod
    def lark(cls, text: str) -> "Grammar":
        """Return the constraint to a context-free grammar in Lark's syntax, or in EBNF as llama.cpp's GBNF has it."""
        check_kind("grammar", text, str, "a grammar, as text")
        return cls("lark", text)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> "Grammar":
        """Return the constraint to one of these texts."""
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
            raise InputError(f"choice = {short_repr(texts)} must be a list of texts, one at least")
        for text in texts:
            if not isinstance(text, str) or not text:
                raise InputError(f"choice: {short_repr(text)} must be a text that is not empty")
        return cls("lark", "start: TEXT\nTEXT: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))

    @classmethod
    def tool_calls(
        cls,
        tools: Sequence[Mapping[str, Any]],
        required: bool = True,
        frame: ToolFrame = FRAME,
        answer: "Grammar | None" = None,
    ) -> "Grammar":
        """Return the constraint to texts with calls of tools, each a `name` and the JSON schema of its `parameters`.

        required: the text is a call from its first token on; else calls may follow free text. frame: the texts around a
        call (`c2t.grammars.tool_calls`). answer: the text has calls alone, or follows this constraint to JSON.
        """
        if answer is not None and answer.kind != "json":
            raise InputError("tools: an answer without calls can follow a JSON schema only")
        for tool in tools:
            _check_depth(tool)
        return cls("lark", frame.grammar(tools, required, answer and answer.source))

    def matcher(self, vocabulary: Vocabulary) -> Matcher:
        """Return the state at a text's beginning. Raises InputError for what llguidance refuses, and for a grammar that
        no token of the vocabulary can begin."""
        return guidance.compiled(self.kind, self.source, vocabulary).matcher()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the schema is no JSON: {error or 'nested too deeply'}") from error


def _check_multiples(source: str) -> None:
    """Raise InputError where `multipleOf` has too many remainders; those of `allOf` have them together. Zeros around
    its digits cost nothing."""
    plain = re.sub(r"\\u00([4-7][0-9a-fA-F])", lambda code: chr(int(code[1], 16)), source)
    digits = [number.replace(".", "").strip("0")[:18] or "1" for number in MULTIPLE.findall(plain)]
    if lcm(*map(int, digits)) > LARGEST_MULTIPLE:
        most = f"at most {LARGEST_MULTIPLE:,}, without zeros at its end, is served"
        raise InputError(f"multipleOf: {', '.join(digits[:3])}: a least common multiple of {most}")


def _check_depth(schema: Any) -> None:
    """Raise InputError for a schema that is too deep, without recursion."""
    level = [schema]
    for _ in range(DEEPEST + 1):
        objects = [part for value in level if isinstance(value, Mapping) for part in value.values()]
        level = objects + [part for value in level if isinstance(value, list | tuple) for part in value]
    if level:
        raise InputError(f"the schema is nested more than {DEEPEST} deep: move parts of it to $defs")
