"""The fields of OpenAI's requests: those that are served, and those that are refused because they would change the
text."""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)
from transformers import PreTrainedTokenizerBase

from c2t.models.loading.template_process import TAKEN
from c2t.serving.messages import Message
from c2t.serving.refusals import NAMED
from c2t.serving.settings import SamplingFields
from c2t.serving.structured import Structured
from c2t.serving.tools import ToolChoice, Tools, ToolUse, tool_use
from c2t.verification.logprobs import MOST

STOPS = 4  # stop strings at most, as OpenAI's API has it
MOST_CHOICES = 128  # texts of one prompt, as OpenAI's API has it
MOST_VARIABLES = 16  # of a chat template
VARIABLE = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}")  # its name
LONGEST_VALUE = 1000  # characters

# Fields that change the text and that c2t does not serve -> the values with which they change nothing. Among them are
# fields of other servers. All other fields are ignored.
REFUSED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "max_completion_tokens": (),
    "prompt_logprobs": (0,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "add_special_tokens": (True, False),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "truncate_prompt_tokens": (),
    "prompt_embeds": ([],),
    "typical_p": (1,),
    "repeat_penalty": (1,),
    "mirostat": (0,),
    "n_predict": (),
    "regex": (),
    "ebnf": (),
    "grammar": (),
    "json_schema": (),
    "use_beam_search": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "enable_thinking": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "guided_whitespace_pattern": (),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
}


class StreamOptions(BaseModel):
    """The usage at the end of a stream and, as vLLM has it, the usage so far in each event."""

    include_usage: StrictBool | None = None
    continuous_usage_stats: StrictBool | None = None


class Fields(Structured, SamplingFields):
    """Fields of both kinds of requests. None stands for a field's default, as in OpenAI's API."""

    model_config = ConfigDict(extra="allow")

    model: StrictStr
    n: Annotated[StrictInt, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: StrictStr | Annotated[list[StrictStr], Field(max_length=STOPS)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    ignore_eos: StrictBool | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None

    def refused(self) -> list[str]:
        """Return the names of fields that are not served and would change the text."""
        given: Mapping[str, Any] = self.model_extra or {}
        return [name for name in given if name in REFUSED and not _neutral(given[name], REFUSED[name])]

    def stops(self) -> list[str]:
        """Return the stop strings; an empty one stops nothing."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in given if stop]

    @property
    def choices(self) -> int:
        """Number of texts of each prompt."""
        return self.n or 1

    @property
    def new_tokens(self) -> int | None:
        """Most new tokens."""
        return self.max_tokens

    @property
    def logprobs_count(self) -> int | None:
        """With how many most probable tokens log-probabilities are wanted; None if they are not."""
        raise NotImplementedError

    @property
    def prompt_logprobs_count(self) -> int | None:
        """The same for the prompt's tokens; 0 where only the prompt is wanted."""
        return None

    def echoed(self, number: int, ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
        """Return what an answer repeats of the prompt of this number, which has these ids."""
        return ""

    @property
    def with_usage(self) -> bool:
        """True for a stream that ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def with_usage_so_far(self) -> bool:
        """True for a stream whose events have the usage so far."""
        return bool(self.with_usage and self.stream_options.continuous_usage_stats)


class Completion(Fields):
    """A request to continue a text, or token ids, or several of either."""

    prompt: (
        StrictStr
        | list[StrictInt]
        | Annotated[list[StrictStr], Field(min_length=1)]
        | Annotated[list[list[StrictInt]], Field(min_length=1)]
    )
    echo: StrictBool | None = None
    logprobs: Annotated[StrictInt, Field(ge=0, le=MOST)] | None = None

    @property
    def logprobs_count(self) -> int | None:
        """See `Fields.logprobs_count`."""
        return self.logprobs

    @property
    def prompt_logprobs_count(self) -> int | None:
        """See `Fields.prompt_logprobs_count`."""
        if not self.echo:
            return None
        return 0 if self.logprobs is None and self.max_tokens == 0 else self.logprobs

    def echoed(self, number: int, ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
        """See `Fields.echoed`."""
        prompt = self.prompts()[number] if self.echo else ""
        return prompt if isinstance(prompt, str) else tokenizer.decode(ids, skip_special_tokens=True)

    @property
    def asked(self) -> str:
        """All texts of the prompts."""
        return "\n".join(prompt for prompt in self.prompts() if isinstance(prompt, str))

    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts, also where there is only one."""
        prompt: Any = self.prompt
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        return prompt if several else [prompt]


class ChatCompletion(Fields):
    """A request to answer a conversation."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    tools: Tools = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: StrictBool | None = None
    add_generation_prompt: StrictBool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MOST_VARIABLES)] | None = None
    continue_final_message: StrictBool | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MOST)] | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _come_with_logprobs(cls, count: int | None, info: Any) -> int | None:
        if count and not info.data.get("logprobs"):
            raise ValueError("logprobs must then be true")
        return count

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_the_templates_own(cls, variables: dict[str, Any] | None) -> dict[str, Any] | None:
        for name, value in (variables or {}).items():
            if not VARIABLE.fullmatch(name):
                raise ValueError(f"{name[:NAMED]!r} is no name of a variable")
            if name in TAKEN or name.endswith(("_token", "_tokens")):
                raise ValueError(f"the template gets {name} from c2t: leave it out")
            number = isinstance(value, int | float) and abs(value) < 2**63 and isfinite(value)
            if not number and not (isinstance(value, str) and len(value) <= LONGEST_VALUE):
                raise ValueError(f"{name} must be true, false, a number or a text of up to {LONGEST_VALUE} characters")
        return variables

    @property
    def logprobs_count(self) -> int | None:
        """See `Fields.logprobs_count`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _ends_in_one_way(self) -> "ChatCompletion":
        if self.continued and self.add_generation_prompt:
            raise ValueError("continue_final_message: add_generation_prompt must then be false, or left out")
        if self.continued and (self.messages[-1].role != "assistant" or not self.messages[-1].text):
            raise ValueError("continue_final_message: the last message must be an assistant's, with a text to continue")
        return self

    @property
    def asked(self) -> str:
        """All that was said."""
        return "\n".join(message.text for message in self.messages)

    def tool_use(self) -> ToolUse | None:
        """Return the tools that the answer may call, None for none; Refusal for a choice that is not there."""
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def continued(self) -> bool:
        """True where the answer goes on with the last message."""
        return bool(self.continue_final_message)

    @property
    def opened(self) -> bool:
        """True where the template opens a new message for the answer."""
        return not self.continued and self.add_generation_prompt is not False

    @property
    def new_tokens(self) -> int | None:
        """Most new tokens; max_tokens is the field's old name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Return True for null and for values that change nothing; false is no 0."""
    return value is None or any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in neutral)
