"""vLLM's --speculative-config, as far as c2t has what it asks for: which draft, and how deep its trees are."""

import json
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from c2t.errors import InputError, plain

OPTION = "--speculative-config"
OWN = {"ngram": "lookup", "eagle": "eagle", "eagle3": "eagle3", "medusa": "medusa"}  # drafts without `model`
Length = Annotated[StrictInt, Field(ge=1)] | None


class SpeculativeConfig(BaseModel):
    """The fields that are understood."""

    model_config = ConfigDict(extra="allow")

    method: Literal["ngram", "eagle", "eagle3", "medusa"] | None = None
    model: StrictStr | None = None
    num_speculative_tokens: Length = None
    # How far back n-grams are looked up. c2t looks up several lengths together; it changes no text.
    prompt_lookup_min: Length = None
    prompt_lookup_max: Length = None
    draft_tensor_parallel_size: Literal[1] | None = None


class Speculation(NamedTuple):
    """A draft's name, and a policy as text, None for the default one."""

    draft: str
    policy: str | None


def read_speculative_config(text: str) -> Speculation:
    """Return what a configuration asks for; InputError, by name, for what c2t does not have."""
    try:
        config = SpeculativeConfig.model_validate(json.loads(text))
    except (RecursionError, ValueError) as error:
        raise InputError(f"{OPTION}: {_reason(error)}") from error
    for name, value in (config.model_extra or {}).items():
        if value is not None:
            raise InputError(f"{OPTION}: c2t serve does not support {plain(name)[:80]}")
    if config.method == "ngram" and config.model not in (None, "ngram", "[ngram]"):
        raise InputError(f"{OPTION}: ngram has no model")
    if config.method is None and config.model is None:
        raise InputError(f"{OPTION}: give a method ({', '.join(OWN)}) or a model")
    draft = config.model if config.model and config.method != "ngram" else OWN[config.method]
    levels = config.num_speculative_tokens
    return Speculation(draft, levels and f"threshold:threshold=0.1,levels={levels}")


def _reason(error: Any) -> str:
    if not isinstance(error, ValidationError):
        return f"it is no JSON ({error})"
    first = error.errors()[0]
    name, given = ".".join(map(str, first["loc"])), first["input"]
    if first["type"] == "literal_error":
        return f"c2t serve does not support {name} {json.dumps(given, default=str)[:80]}: {first['msg']}"
    return f"{name}: {first['msg']}" if name else "it must be a JSON object"
