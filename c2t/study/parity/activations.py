"""Hooks on a model's leaf modules, which compare a token's activations, alone and among others.

A module's output differs by the module itself. An input differs by the code before it: attention, rotations, residual
sums and products, which are no modules.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

INPUT = " <in>"


class Difference(NamedTuple):
    """How an activation differs. ulp: the most, in units in the last place of the row's largest number. rows: how
    many."""

    ulp: float
    rows: int


def largest(*differences: Difference) -> Difference:
    """Return the most ulp and the most rows of any of them."""
    return Difference(*map(max, zip(*differences, strict=True)))


def difference(computed: Float[Tensor, "n ..."], expected: Float[Tensor, "n ..."]) -> Difference | None:
    """Return how rows differ; None if all are equal."""
    if computed.equal(expected):
        return None
    computed, expected, eps = computed.flatten(1), expected.flatten(1), torch.finfo(computed.dtype).eps
    size = expected.double().abs().amax(1).clamp(min=torch.finfo(expected.dtype).tiny)
    unit = torch.exp2(size.log2().floor()) * eps
    ulp = (computed.double() - expected.double()).abs().amax(1) / unit
    return Difference(float(ulp.max()), int((computed != expected).any(1).sum()))


class Activations:
    """Hooks on all leaf modules. Use it as a context: its end removes them.

    order: names of all activations in calling order. unseen: modules with numbers of another form than (1, n, ...),
    which are not compared.
    """

    def __init__(self, model: nn.Module):
        self.leaves = {name: module for name, module in model.named_modules() if not list(module.children())}
        self.unseen: set[str] = set()
        self._mode: Literal["store", "compare", "force"] | None = None
        self._rows = 1
        self._stored: dict[str, list[list[Tensor | None]]] = defaultdict(list)
        self._differing: dict[str, Difference] = {}
        self._calls: Counter[str] = Counter()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "Activations":
        for name, module in self.leaves.items():
            before = module.register_forward_pre_hook(self._before(name), with_kwargs=True)
            self._hooks += [before, module.register_forward_hook(self._after(name))]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def order(self) -> list[str]:
        return list(self._stored)

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Store what a forward of one token computes, as the next node's."""
        with self._watching("store", 1):
            yield

    @contextmanager
    def comparing(self, rows: int, force: bool = False) -> Iterator[dict[str, Difference]]:
        """Compare a forward of the first nodes with what is stored; the result is filled in by it.

        force: go on with the stored numbers after each comparison: what differs then differs by itself, on exact ones.
        """
        with self._watching("force" if force else "compare", rows):
            yield self._differing

    @contextmanager
    def _watching(self, mode: Literal["store", "compare", "force"], rows: int) -> Iterator[None]:
        self._mode, self._rows, self._differing = mode, rows, {}
        self._calls.clear()
        try:
            yield
        finally:
            self._mode = None

    def _before(self, name: str) -> Any:
        def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
            self._calls[name] += 1
            stored = self._see(name, INPUT, [*args, *kwargs.values()])
            if stored is None:
                return None
            return tuple(stored[: len(args)]), dict(zip(kwargs, stored[len(args) :], strict=True))

        return hook

    def _after(self, name: str) -> Any:
        def hook(_: nn.Module, _args: tuple, output: Any) -> Any:
            if type(output) is tuple:
                return (stored := self._see(name, "", output)) and tuple(stored)
            return (stored := self._see(name, "", [output])) and stored[0]

        return hook

    def _see(self, name: str, end: str, values: Sequence[Any]) -> list[Any] | None:
        """Store or compare values; return those to go on with, None for the values themselves."""
        if self._mode is None:
            return None
        again = f", call {self._calls[name]}" if self._calls[name] > 1 else ""
        tensor, numbers = f"{name}{again}{end}", [self._numbers(name, value) for value in values]
        if self._mode == "store":
            self._stored[tensor].append([None if value is None else value.clone() for value in numbers])
            return None
        nodes = self._stored[tensor][: self._rows] if tensor in self._stored else []
        if len(nodes) < self._rows or all(value is None for value in numbers):
            return None
        stored = [None if new is None else torch.cat([node[i] for node in nodes], 1) for i, new in enumerate(numbers)]
        for computed, expected in zip(numbers, stored, strict=True):
            if computed is not None and (differs := difference(computed[0], expected[0])):
                self._differing[tensor] = largest(differs, self._differing.get(tensor, differs))
        if self._mode == "compare":
            return None
        return [value if expected is None else expected for value, expected in zip(values, stored, strict=True)]

    def _numbers(self, name: str, value: Any) -> Tensor | None:
        """Return a value that has a row for each token; None for others."""
        if not torch.is_tensor(value) or not value.is_floating_point():
            return None
        if value.shape[:2] == (1, self._rows):
            return value
        self.unseen.add(name)
        return None
