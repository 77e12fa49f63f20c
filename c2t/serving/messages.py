"""The messages of a conversation, as OpenAI's API has them."""

import json
from typing import Any, Literal

from pydantic import BaseModel, StrictStr, field_validator, model_validator

from c2t.models.loading.chat_templates import OLDER


class TextPart(BaseModel):
    """A part of a message that has several."""

    type: Literal["text"]
    text: StrictStr


class FunctionCall(BaseModel):
    """A function's name and its arguments: sent as a text, but as an object they are what chat templates write as
    JSON."""

    name: StrictStr
    arguments: dict[str, Any] = {}

    @field_validator("arguments", mode="before")
    @classmethod
    def _of_text(cls, text: Any) -> dict[str, Any]:
        """Return the object that a text is; some clients send none for no arguments."""
        try:
            value = json.loads(text or "{}") if isinstance(text, str) else None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"arguments must be the text of a JSON object: {error}") from error
        if not isinstance(value, dict):
            raise ValueError("arguments must be the text of a JSON object")
        return value


class ToolCall(BaseModel):
    """A call that an answer has made."""

    id: StrictStr | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | list[TextPart] | None = None
    name: StrictStr | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: StrictStr | None = None

    @model_validator(mode="after")
    def _has_content(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls belong to the role assistant, not to {self.role}")
        if self.content is None and not self.tool_calls:
            raise ValueError("content may be null or absent only where an assistant's message has tool_calls")
        return self

    @property
    def text(self) -> str:
        """The content as one text; "" for none."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def plain(self) -> dict[str, Any]:
        """Return the message as chat templates take it."""
        message: dict[str, Any] = {"role": OLDER.get(self.role, self.role), "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id or "", "type": "function", "function": dict(call.function)} for call in self.tool_calls
            ]
        if self.role == "tool":
            message |= {"tool_call_id": self.tool_call_id or "", "name": self.name or ""}
        return message
