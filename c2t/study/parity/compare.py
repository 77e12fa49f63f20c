"""Plain decoding against one forward over M nodes: which logits differ, by which modules, and what that changes."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from c2t.errors import InputError
from c2t.study.parity.activations import Activations, Difference, difference, largest
from c2t.study.parity.nodes import Compared, PlainNode, grow

LAYER = re.compile(r"(?<=\.)\d+(?=\.)")  # number of a layer in a module's name


class ParityRow(NamedTuple):
    """The comparison at one number of nodes. differing: nodes whose logits differ. ulp: by how much at most, see
    `Difference`. flips: for each node with another argmax, the gap between plain decoding's two largest logits. first:
    the first activation in calling order that differs. activations: those that differ by themselves. nodes: of all
    prompts."""

    rows: int
    nodes: int
    differing: int
    ulp: float
    flips: tuple[float, ...]
    first: str | None
    activations: Mapping[str, Difference]

    def with_prompt(self, other: "ParityRow") -> "ParityRow":
        """Return the comparison of this one's prompts and another's."""
        activations = dict(self.activations)
        for name, differs in other.activations.items():
            activations[name] = largest(differs, activations.get(name, differs))
        return ParityRow(
            self.rows,
            self.nodes + other.nodes,
            self.differing + other.differing,
            max(self.ulp, other.ulp),
            self.flips + other.flips,
            self.first or other.first,
            activations,
        )


class ModuleGroup(NamedTuple):
    """Activations of one name in all layers, such as layers.*.mlp.down_proj. differing: their full names. count: of the
    model's activations of that name. ulp, rows: the most of any of them."""

    name: str
    differing: tuple[str, ...]
    count: int
    ulp: float
    rows: int

    @property
    def layers(self) -> list[str]:
        """Numbers of the layers that differ, such as "3"."""
        return [".".join(LAYER.findall(name)) for name in self.differing]


def compare(
    model: Compared, rows: Sequence[int], branches: int, activations: Activations | None = None
) -> list[ParityRow]:
    """Compare a model after its prompt at several numbers of nodes. branches: most children of a node, 1 for a chain.
    activations: hooks on the model's modules, None for a model without modules to name.

    InputError for a model whose numbers are not the same twice.
    """
    nodes, alone = grow(model, max(rows), branches)
    return [_row(model, nodes[:count], alone[:count], activations) for count in rows]


def _row(
    model: Compared, nodes: Sequence[PlainNode], alone: Float[Tensor, "n V"], activations: Activations | None
) -> ParityRow:
    first, isolated = None, {}
    if activations is None:
        logits = model.verify(nodes)
    else:
        with activations.comparing(len(nodes)) as differing:
            logits = model.verify(nodes)
        first = next((name for name in activations.order if name in differing), None)
        with activations.comparing(len(nodes), force=True) as differing:
            model.verify(nodes)
        isolated = {name: differing[name] for name in activations.order if name in differing}
    if not logits.equal(model.verify(nodes)):
        raise InputError("the model is not deterministic: the same forward twice gave other logits")
    differs = difference(logits, alone) or Difference(0.0, 0)
    flipped = logits.argmax(-1) != alone.argmax(-1)
    best, second = alone[flipped].float().topk(2).values.unbind(1)
    gaps = tuple((best - second).tolist())
    return ParityRow(len(nodes), len(nodes), differs.rows, differs.ulp, gaps, first, isolated)


def grouped(activations: Mapping[str, Difference], order: Sequence[str]) -> list[ModuleGroup]:
    """Return the activations grouped over layers, in calling order. order: all activations of the model."""
    groups: dict[str, list[str]] = {}
    for name in order:
        groups.setdefault(LAYER.sub("*", name), []).append(name)
    result = []
    for name, members in groups.items():
        differing = tuple(member for member in members if member in activations)
        if differing:
            most = largest(*(activations[member] for member in differing))
            result.append(ModuleGroup(name, differing, len(members), *most))
    return result
