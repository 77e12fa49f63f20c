"""The fields of OpenAI's requests: those that are served, and those that are refused because they would change the
text."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from c2t.sampling import Sampling

STOPS = 4  # stop strings at most, as OpenAI's API has it
SEEDS = 2**63

# Fields that change the text and that c2t does not serve -> the values with which they change nothing. Among them are
# fields of other servers. All other fields are ignored.
REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}


class StreamOptions(BaseModel):
    """How a stream ends."""

    include_usage: StrictBool | None = None


class Fields(BaseModel):
    """Fields of both kinds of requests. None stands for a field's default, as in OpenAI's API."""

    model_config = ConfigDict(extra="allow")

    model: StrictStr
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    seed: Annotated[StrictInt, Field(ge=-SEEDS, lt=SEEDS)] | None = None
    stop: StrictStr | Annotated[list[StrictStr], Field(max_length=STOPS)] | None = None
    max_tokens: StrictInt | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None

    def refused(self) -> list[str]:
        """Return the names of fields that are not served and would change the text."""
        given: Mapping[str, Any] = self.model_extra or {}
        return [name for name in given if name in REFUSED and not _neutral(given[name], REFUSED[name])]

    def sampling(self) -> Sampling:
        """Return the settings of the target's sampling, with a seed of its own for a request without one; InputError
        for values out of range."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=secrets.randbelow(SEEDS) if self.seed is None else self.seed,
        )

    def stops(self) -> list[str]:
        """Return the stop strings; an empty one stops nothing."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in given if stop]

    @property
    def new_tokens(self) -> int | None:
        """Most new tokens."""
        return self.max_tokens

    @property
    def with_usage(self) -> bool:
        """True for a stream that ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class Completion(Fields):
    """A request to continue a text, or token ids."""

    prompt: StrictStr | list[StrictInt]


class TextPart(BaseModel):
    """A part of a message that has several."""

    type: Literal["text"]
    text: StrictStr


class Message(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: StrictStr | list[TextPart]

    def plain(self) -> dict[str, str]:
        """Return role and text, as chat templates take them."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content}


class ChatCompletion(Fields):
    """A request to answer a conversation."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: StrictInt | None = None

    @property
    def new_tokens(self) -> int | None:
        """Most new tokens; max_tokens is the field's old name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Return True for null and for values that change nothing; false is no 0."""
    return value is None or any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in neutral)
