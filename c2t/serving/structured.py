"""Structured outputs: the fields that constrain a text, in OpenAI's form and in vLLM's, become grammars."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from c2t.errors import InputError
from c2t.grammars.constraint import Vocabulary
from c2t.grammars.grammar import Grammar
from c2t.protocols import Policy
from c2t.serving.refusals import Refusal, unsupported
from c2t.verification.compatibility import check_constraint

Schema = dict[str, Any] | StrictStr
Maker = Callable[[], Grammar]
MAKERS = {"json": Grammar.json_schema, "regex": Grammar.regex, "grammar": Grammar.lark, "choice": Grammar.choice}
SECONDS = 10.0  # that a request waits for its grammar to be compiled


class JsonSchema(BaseModel):
    """A named schema. strict: always so here."""

    name: StrictStr | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """OpenAI's field: the form of a text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(BaseModel):
    """vLLM's field: one of these, which the text must follow."""

    model_config = ConfigDict(extra="allow")

    json_: Schema | None = Field(default=None, alias="json")
    regex: StrictStr | None = None
    grammar: StrictStr | None = None
    choice: list[StrictStr] | None = None
    json_object: StrictBool | None = None


class Structured(BaseModel):
    """The fields of a request that constrain its text."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: StrictStr | None = None
    guided_grammar: StrictStr | None = None
    guided_choice: list[StrictStr] | None = None

    @property
    def asked(self) -> str:
        """All that the request says; where it asks for any JSON object, it must say so."""
        raise NotImplementedError

    def constraint(self) -> tuple[str, Maker] | None:
        """Return the field that constrains the text, and what makes its grammar; None where there is none. Raises
        Refusal for several such fields, and for forms that are not served."""
        given = [(name, make) for name, make in self._makers() if make]
        if len(given) > 1:
            names = ", ".join(name for name, _ in given)
            raise Refusal(f"{names}: a text can follow one of them only", given[1][0].partition(".")[0])
        return given[0] if given else None

    def _makers(self) -> list[tuple[str, Maker | None]]:
        outputs = self.structured_outputs or StructuredOutputs()
        for name, value in (outputs.model_extra or {}).items():
            if value not in (None, False):
                raise unsupported(f"structured_outputs.{name}")
        makers = [("response_format", self._by_format())]
        for form, make in MAKERS.items():
            for name, value in (
                (f"guided_{form}", getattr(self, f"guided_{form}")),
                (f"structured_outputs.{form}", getattr(outputs, "json_" if form == "json" else form)),
            ):
                makers.append((name, None if value is None else partial(make, value)))
        makers.append(("structured_outputs.json_object", Grammar.json_object if outputs.json_object else None))
        return makers

    def _by_format(self) -> Maker | None:
        form = self.response_format
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            if "json" not in self.asked.lower():  # or models write white space for ever
                raise Refusal("response_format: a message must say that the answer is JSON, by that word", "messages")
            return Grammar.json_object
        if form.json_schema is None:
            raise Refusal("response_format: json_schema is missing, with name and schema", "response_format")
        return partial(Grammar.json_schema, form.json_schema.schema_)


class Compiler:
    """Compiles grammars for a policy and a vocabulary, two at a time, in threads of its own."""

    def __init__(self, policy: Policy, vocabulary: Vocabulary):
        self.policy, self.vocabulary = policy, vocabulary
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="grammars")

    async def compiled(self, name: str, make: Maker) -> Grammar:
        """Return the grammar that `make` makes, which is compiled then; Refusal, with the field `name`, where that
        fails or takes too long."""
        param = name.partition(".")[0]
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self.pool.submit(self._compile, make)), SECONDS)
        except TimeoutError as error:
            message = f"{name}: it was not compiled within {SECONDS:g} seconds: make it simpler, or try again"
            raise Refusal(message, param) from error
        except InputError as error:
            said = str(error)
            raise Refusal(said if said.startswith(f"{name}: ") else f"{name}: {said}", param) from error

    def _compile(self, make: Maker) -> Grammar:
        grammar = make()
        check_constraint(self.policy, grammar)
        grammar.matcher(self.vocabulary)  # it remembers what it has compiled
        return grammar
