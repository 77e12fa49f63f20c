"""The device that tensors are computed on."""

import torch

from c2t.errors import InputError, short_repr


def checked_device(name: str | torch.device | None) -> torch.device:
    """Return the device of this name, for None the GPU if there is one, else the CPU; InputError if this machine has
    none of the name that computes."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name, dtype=torch.uint8)
        device = torch.device(name)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:  # torch asserts that it was built for it
        raise InputError(f"no device is called {short_repr(str(name))} on this machine; cpu always works") from error
    if device.type == "meta":
        raise InputError("the device meta holds no numbers: decode on another one; cpu is always there")
    return device
