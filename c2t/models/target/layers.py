"""The decoder layers that a model runs."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from c2t.errors import InputError


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return a model's decoder layers, of which there may be fewer than its config says. InputError for more, and
    unless layer i keeps keys and values as the cache's layer i."""
    base: Any = model.base_model
    layers, count = list(base.h if hasattr(base, "h") else base.layers), base.config.num_hidden_layers
    if len(layers) > count:
        raise InputError(f"the model has {len(layers)} layers, and its config says {count}: set num_hidden_layers")
    indices = list(map(_layer_index, layers))
    if indices != list(range(len(layers))):
        first = ", ".join(map(str, indices[:8]))
        raise InputError(
            f"the model's layers have the layer_idx {first}: number them from 0 to {len(layers) - 1}, each with "
            "its own attention"
        )
    return layers


def _layer_index(layer: nn.Module) -> Any:
    return next((part.layer_idx for part in layer.modules() if hasattr(part, "layer_idx")), None)
