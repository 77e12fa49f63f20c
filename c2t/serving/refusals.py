"""Errors of requests in OpenAI's form."""

from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from c2t.batching import Full
from c2t.errors import InputError, one_line, plain
from c2t.serving.front import Failed, ServerStopping

KINDS = (RequestValidationError, HTTPException, InputError, Failed, ServerStopping)  # errors that have a form
ADDRESSES = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics")
NAMED = 40  # characters of a key of the client's own that a message repeats
# Fields that have another name here -> that name.
INSTEAD = {"functions": "tools", "function_call": "tool_choice", "enable_thinking": "chat_template_kwargs"}
INSTEAD |= {"regex": "guided_regex", "ebnf": "guided_grammar", "grammar": "guided_grammar"}
INSTEAD |= {"json_schema": "response_format", "n_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
RETRY_AFTER = "1"  # seconds to wait before sending a request again that found the queue full


class Refusal(InputError):
    """A request that is not served. param: the field at fault; code: OpenAI's word for the reason."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


def unsupported(name: str) -> Refusal:
    """Return the refusal of a field that c2t does not have."""
    other = f"use {INSTEAD[name]}" if name in INSTEAD else "leave it out"
    return Refusal(f"c2t serve does not support {name}: {other}", name.partition(".")[0], "unsupported_value")


def error_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an error."""
    param, code, kind = getattr(error, "param", None), getattr(error, "code", None), "invalid_request_error"
    match error:
        case Full():
            status, message, kind, code = 429, str(error), "rate_limit_error", "rate_limit_exceeded"
        case RequestValidationError():
            status, (message, param) = 400, _first(error)
        case HTTPException(status_code=404):
            status, message = 404, f"there is no such address: c2t serve has {', '.join(ADDRESSES)}"
        case HTTPException():
            status, message = error.status_code, _unread(error.__cause__) if error.__cause__ else str(error.detail)
        case Failed(lasting=True):
            status, message = 400, str(error)
        case Failed() | ServerStopping():
            status, message, kind = 500 if isinstance(error, Failed) else 503, str(error), "server_error"
        case _:
            status, message = getattr(error, "status", 400), str(error)
    return status, {"error": {"message": plain(message), "type": kind, "param": param, "code": code}}


def _first(error: RequestValidationError) -> tuple[str, str | None]:
    """Return the first error in a body, and its field."""
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"the body is no JSON: {first['ctx']['error']} at character {first['loc'][-1]}", None
    paths = [_path(error.body, detail) for detail in errors]
    # Of the forms that a field may have, the one that the value comes nearest to: its error lies deepest, or is none of
    # the value's type.
    same = [number for number, detail in enumerate(errors) if detail["loc"][:2] == first["loc"][:2]]
    best = max(same, key=lambda number: (len(paths[number]), not errors[number]["type"].endswith("_type")))
    field = [str(part)[:NAMED] for part in paths[best]]
    said = errors[best]["msg"].removeprefix("Value error, ")
    if errors[best]["type"] == "value_error" and not field:  # of several fields, the first of which the message names
        return said, said.partition(":")[0]
    if not field and isinstance(error.body, dict):
        return "the body has a field whose name is no text", None  # such as half of a surrogate pair
    if not field:
        return "the body must be a JSON object, sent as Content-Type: application/json", None
    named = said.startswith((f"{field[-1]} = ", f"{field[-1]} of "))
    return said if named else f"{'.'.join(field)}: {said}", field[0]


def _path(body: Any, error: Any) -> list[str | int]:
    """Return where in a body an error lies, without the names of the forms that a field may have."""
    path: list[str | int] = []
    for part in error["loc"][1:]:
        if (isinstance(body, dict) and part in body) or (isinstance(body, list) and isinstance(part, int)):
            path.append(part)
            body = body[part]
    return [*path, error["loc"][-1]] if error["type"] == "missing" and error["loc"][1:] else path


def _unread(cause: BaseException) -> str:
    """Return what is wrong with a body that could not be read."""
    deep = isinstance(cause, RecursionError)
    return f"the body is no JSON that can be read: {'it is nested too deeply' if deep else one_line(cause)}"
