"""The prompts and arguments that generate passes to a decoding method; refuse what trees cannot serve."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.generation import GenerationMode

from c2t.errors import InputError
from c2t.verification.prompt_ids import check_length

READ = ("attention_mask", "position_ids", "past_key_values")
WITHOUT_EFFECT = ("use_cache", "logits_to_keep", "cache_position")  # on the text: c2t has a cache of its own
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def check_config(config: GenerationConfig) -> None:
    """Raise InputError for ways of decoding that are not greedy or sampling, and for outputs that trees do not have."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise InputError(
            f"these settings ask generate for {mode.value}: trees decode greedily or sample; leave out num_beams, "
            "prompt_lookup_num_tokens and the like"
        )
    outputs = [name for name in OUTPUTS if getattr(config, name, None)]
    if config.return_dict_in_generate and outputs:
        raise InputError(f"{outputs[0]}: tree decoding returns sequences only; leave it out")


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise InputError for inputs of the model that trees do not pass on, and for a cache of the caller's."""
    unknown = [name for name, value in arguments.items() if name not in READ + WITHOUT_EFFECT and value is not None]
    if unknown:
        raise InputError(f"{unknown[0]}: tree decoding reads input_ids and attention_mask only; leave it out")
    cache = arguments.get("past_key_values")
    if cache is None:
        return
    if type(cache) is not DynamicCache:
        raise InputError(
            f"a {type(cache).__name__} cannot hold trees: c2t has a cache of its own; leave out past_key_values and "
            "cache_implementation"
        )
    if cache.get_seq_length() or getattr(cache, "_is_user_defined", False):
        raise InputError("past_key_values: c2t has a cache of its own; leave it out, and give the whole text")


def prompts_of(
    input_ids: Int[Tensor, "B P"],
    arguments: Mapping[str, Any],
    max_length: int,
    positions: int,
) -> list[list[int]]:
    """Return the prompts without the padding on their left.

    max_length: of the texts, padding and prompt included. positions: how many the model has. InputError for padding
    elsewhere, empty prompts, positions of the caller's, and texts that are too long.
    """
    mask = arguments.get("attention_mask")
    real = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.to(input_ids.device) != 0
    if real.shape != input_ids.shape or not real[:, -1:].all() or (real[:, :-1] & ~real[:, 1:]).any():
        raise InputError("attention_mask has zeros after ones: pad on the left (padding_side='left')")
    counted = (real.cumsum(-1) - 1).clamp(min=0)
    given = arguments.get("position_ids")
    if given is not None and not (given.to(input_ids.device).expand_as(counted) == counted)[real].all():
        raise InputError("position_ids: tree decoding counts every text's positions from 0; leave it out")
    prompts = [row[mask].tolist() for row, mask in zip(input_ids, real, strict=True)]
    for number, prompt in enumerate(prompts):
        check_length(len(prompt), max_length - input_ids.shape[1], positions, f"prompt {number}")
    return prompts


def check_streaming(prompts: Sequence[Sequence[int]], streamer: Any) -> None:
    """Raise InputError for a streamer of several texts."""
    if streamer is not None and len(prompts) > 1:
        raise InputError(f"a streamer shows one text, not {len(prompts)}; leave it out or give one prompt")
