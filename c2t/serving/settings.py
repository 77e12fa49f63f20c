"""The fields of a request that choose how its tokens are sampled."""

import secrets
from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictFloat, StrictInt, StringConstraints, field_validator

from c2t.errors import InputError
from c2t.sampling import BIASES, Sampling
from c2t.serving.refusals import Refusal

SEEDS = 2**63
TokenId = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9]{1,18}$")]  # keys of JSON objects are texts
OFF = -1  # top_k of vLLM's that is off, as 0 is


class SamplingFields(BaseModel):
    """Fields that choose the target's sampling. None stands for a field's default: temperature is 1, all else off."""

    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: StrictInt | None = None
    min_p: StrictFloat | None = None
    repetition_penalty: StrictFloat | None = None
    frequency_penalty: StrictFloat | None = None
    presence_penalty: StrictFloat | None = None
    logit_bias: Annotated[dict[TokenId, StrictFloat], Field(max_length=BIASES)] | None = None
    seed: Annotated[StrictInt, Field(ge=-SEEDS, lt=SEEDS)] | None = None

    @field_validator("*")
    @classmethod
    def _in_range(cls, value: Any, info: Any) -> Any:
        """Raise InputError, which names the field, for a value out of range."""
        if info.field_name in SETTINGS and value is not None:
            Sampling(**{info.field_name: _as_setting(info.field_name, value)})
        return value

    def sampling(self, vocabulary: int) -> Sampling:
        """Return the settings of the target's sampling, with a seed of its own for a request without one. Refusal for a
        bias of a token outside the vocabulary."""
        given = {name: getattr(self, name) for name in SETTINGS}
        chosen = {name: _as_setting(name, value) for name, value in given.items() if value is not None}
        sampling = Sampling(**{"temperature": 1.0, "seed": secrets.randbelow(SEEDS), **chosen})
        try:
            sampling.check_vocabulary(vocabulary)
        except InputError as error:
            raise Refusal(str(error), "logit_bias") from error
        return sampling


SETTINGS = tuple(SamplingFields.model_fields)


def _as_setting(name: str, value: Any) -> Any:
    """Return a field's value as Sampling takes it."""
    if name == "logit_bias":
        return {int(token): bias for token, bias in value.items()}
    return 0 if name == "top_k" and value == OFF else value
