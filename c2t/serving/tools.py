"""The tools of a request: fields, the prompt that describes them, and the frame of their calls."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictStr
from transformers import PreTrainedTokenizerBase

from c2t.grammars.grammar import Grammar
from c2t.grammars.tool_calls import FRAME, ToolFrame, frame_of
from c2t.serving.refusals import Refusal

MOST_TOOLS = 128  # as OpenAI's API has it
HOW = """You can call tools. Each line between <tools> and </tools> describes one, with the schema of its arguments:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments in this form:
{form}"""


class Function(BaseModel):
    """A function that an answer may call. parameters: a JSON schema; strict: always so here."""

    model_config = ConfigDict(extra="allow")

    name: StrictStr
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool: functions are the only ones."""

    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """Return the tool as chat templates take it."""
        return self.model_dump(exclude_none=True)


class FunctionName(BaseModel):
    """The name of a function."""

    name: StrictStr


class NamedTool(BaseModel):
    """The choice of one tool."""

    type: Literal["function"] = "function"
    function: FunctionName


Tools = Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None
ToolChoice = Literal["none", "auto", "required"] | NamedTool | None


class ToolUse(NamedTuple):
    """The tools that an answer may call. required: it must; named: this one, once; parallel: it may call several."""

    tools: list[dict[str, Any]]
    required: bool
    named: bool
    parallel: bool


def tool_use(tools: Tools, choice: ToolChoice, parallel: bool | None) -> ToolUse | None:
    """Return what these fields ask for, None for an answer that calls no tools; Refusal for a choice among none."""
    given = [tool.plain() for tool in tools or ()]
    if not given:
        if choice not in (None, "none", "auto"):
            raise Refusal("tool_choice: there are no tools to choose from: send some as tools", "tool_choice")
        return None
    if choice == "none":
        return None
    if named := isinstance(choice, NamedTool):
        name = choice.function.name
        given = [tool for tool in given if tool["function"]["name"] == name]
        if not given:
            raise Refusal(f"tool_choice: tools has none with the name {name[:80]!r}", "tool_choice")
    return ToolUse(given, choice not in (None, "auto"), named, parallel is not False and not named)


class ToolPrompt:
    """How a pair's prompts describe tools, and how its texts call them.

    frame: that of the tokenizer's chat template, where it reads tools in a known way; else FRAME, and a system message
    describes the tools.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        template = tokenizer.chat_template
        if isinstance(template, Mapping):
            template = template.get("tool_use") or template.get("default")
        frame = frame_of(template or "")
        self.by_template = frame is not None
        added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        self.frame = (frame or FRAME).tokenized(added, special)

    def messages(self, messages: Sequence[Mapping[str, Any]], use: ToolUse | None) -> list[dict[str, Any]]:
        """Return the messages that the template gets: calls, their results and the tools as texts, unless it reads
        them itself."""
        if self.by_template:
            return list(messages)
        plain = [_as_text(message, self.frame) for message in messages]
        return _with_tools(plain, use.tools, self.frame) if use else plain

    def grammar(self, use: ToolUse, answer: Grammar | None) -> Grammar:
        """Return the constraint to texts that call these tools or are an answer; InputError for tools that no grammar
        can have."""
        frame = self.frame if use.parallel else replace(self.frame, between="")
        return Grammar.tool_calls([tool["function"] for tool in use.tools], use.required, frame, answer)


def _as_text(message: Mapping[str, Any], frame: ToolFrame) -> dict[str, Any]:
    """Return a message with role and content alone. The result of a tool is a user's message, since many templates
    know no role tool."""
    role, content = message["role"], message["content"]
    if role == "tool":
        return {"role": "user", "content": f"<tool_response>{content}</tool_response>"}
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return {"role": role, "content": content + (frame.written(calls) if calls else "")}


def _with_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]], frame: ToolFrame
) -> list[dict[str, Any]]:
    """Return the messages with the description of tools at the end of the system message."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    form = frame.opening + '{"name": NAME, "arguments": {...}}' + frame.closing
    system, rest = "", list(messages)
    if rest and rest[0]["role"] == "system":
        system = rest.pop(0)["content"] + "\n\n"
    return [{"role": "system", "content": system + HOW.format(tools=lines, form=form)}, *rest]
