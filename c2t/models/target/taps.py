"""Hooks that read what goes into layers."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Tapped(Protocol):
    """Reader of layers' inputs, which a Tap puts into `tapped`, each under its number."""

    tapped: dict[int, Tensor | None]


class Tap:
    """Hook before a module's forward that hands its input to `reader`, and changes nothing."""

    def __init__(self, reader: Tapped, number: int):
        self.reader, self.number = reader, number

    def __call__(self, _module: nn.Module, inputs: tuple, named: dict[str, Any]) -> None:
        self.reader.tapped[self.number] = inputs[0] if inputs else named["hidden_states"]
