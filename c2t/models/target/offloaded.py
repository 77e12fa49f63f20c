"""Modules whose weights accelerate keeps on a disk or in another memory, and brings to a device for each call."""

import torch
from torch import Tensor, nn

from c2t.errors import InputError


def device_of(module: nn.Module) -> torch.device:
    """Return the device on which a module's weight is when the module is called."""
    weight: Tensor = module.weight
    hook = getattr(module, "_hf_hook", None)
    if not weight.is_meta or hook is None:
        return weight.device
    devices = [part.execution_device for part in getattr(hook, "hooks", [hook]) if hasattr(part, "execution_device")]
    return torch.device(devices[-1])


def check_in_memory(module: nn.Module, what: str) -> None:
    """Raise InputError where a module's weight can be had only by a call; what: its name in the target."""
    weight: Tensor = module.weight
    if weight.is_meta:
        raise InputError(
            f"the target's {what} is offloaded, and this draft reads its weights: give it a device in device_map, or "
            "draft with lookup or a language model"
        )
