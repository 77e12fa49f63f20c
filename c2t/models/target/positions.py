"""The positions that a model has, and those after the last one.

Some models choose their rotary frequencies by the largest position of a forward: LongRoPE from one position on, dynamic
RoPE after the last one. A tree that reached so far would change them for the whole forward, all other rows included.
"""

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedConfig


def positions_of(config: PreTrainedConfig) -> int:
    """Return how many positions a text may have; with LongRoPE those before its frequencies change."""
    ends = [kind["original_max_position_embeddings"] for kind in _rotary(config) if kind["rope_type"] == "longrope"]
    return min(ends, default=config.max_position_embeddings)


def within(positions: Int[Tensor, "*B n"], config: PreTrainedConfig) -> Int[Tensor, "*B n"]:
    """Return positions as a model's forward can take them, clamped to the last one where the model has a table of them,
    or frequencies that would change for the other rows. What stands there is no part of a text."""
    kinds = _rotary(config)
    if kinds and not any(kind["rope_type"] in ("longrope", "dynamic") for kind in kinds):
        return positions
    return positions.clamp(max=positions_of(config) - 1)


def changes_with_text(config: PreTrainedConfig) -> bool:
    """Return whether a forward looks at its positions to choose rotary frequencies."""
    return any(kind["rope_type"] == "dynamic" for kind in _rotary(config))


def _rotary(config: PreTrainedConfig) -> list[dict]:
    """Return the parameters of a model's rotary frequencies, of each kind of layer that has some of its own; none for
    a table of positions."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else rope.values()
    return [kind for kind in kinds if kind]
