"""A classifier with one hidden layer as the kernels read it, and its confidence in nodes, in C on a CPU (C2T, section
4.1).

Between two forwards the code of torch's operations is cold, and to classify a level's candidates takes a dozen of them.
"""

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from c2t.kernels.features import Column
from c2t.kernels.native import kernels, structs
from c2t.kernels.pointer import pointer, pointers

COLUMNS = ("log_joint", "entropy", "depth", "log_prob", "max_log_prob", "rank")  # that a kernel can read
WHOLE = ("depth", "rank")  # of these, those of integers


@dataclass(frozen=True, eq=False)
class Network:
    """Weights of a classifier with one hidden layer, over F features that are columns of a candidate. conditional: a
    candidate's score is its own confidence times its parent's score."""

    features: tuple[Column, ...]
    hidden_weight: Float[Tensor, "H F"]
    hidden_bias: Float[Tensor, " H"]
    output_weight: Float[Tensor, " H"]
    output_bias: Float[Tensor, " 1"]
    conditional: bool = False

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Weights and biases of both layers."""
        return self.hidden_weight, self.hidden_bias, self.output_weight, self.output_bias

    @cached_property
    def in_c(self) -> ctypes.Structure | None:
        """The same for functions in C, which reads the weights where they are; None where it cannot: elsewhere than on
        a CPU, in another type than float32, or without a compiler."""
        plain = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in self.weights)
        if not plain or not all(tensor.is_contiguous() for tensor in self.weights) or kernels() is None:
            return None
        whole, exps = (
            bytes(flags) for flags in ([f.name in WHOLE for f in self.features], [f.exp for f in self.features])
        )
        struct = structs.network(
            *(ctypes.cast(flags, ctypes.c_void_p) for flags in (whole, exps)),
            *(len(self.features), len(self.hidden_bias)),
            *(pointer(tensor, torch.float32) for tensor in self.weights),
            self.conditional,
        )
        struct.flags = whole, exps  # which it points into
        return struct


def serves(network: Network, nodes: Any) -> bool:
    """Return True if `confidence` can read these nodes: columns of one shape, on a CPU, in float32 and int64."""
    if network.in_c is None:
        return False
    columns = {feature.name: getattr(nodes, feature.name, None) for feature in network.features}
    plain = all(
        isinstance(column, Tensor)
        and column.device.type == "cpu"
        and column.dtype == (torch.int64 if name in WHOLE else torch.float32)
        for name, column in columns.items()
    )
    return plain and len({column.shape for column in columns.values()}) == 1


def confidence(network: Network, nodes: Any) -> Float[Tensor, "..."]:
    """Return each node's confidence in (0, 1) in C; a node's is the same among any others."""
    columns = [getattr(nodes, feature.name).contiguous() for feature in network.features]
    scores = torch.empty(columns[0].shape, dtype=torch.float32, device="cpu")
    kinds = (torch.int64 if feature.name in WHOLE else torch.float32 for feature in network.features)
    read = (ctypes.c_void_p * len(columns))(*pointers(columns, kinds))
    kernels().confidences(network.in_c, read, scores.numel(), pointer(scores, torch.float32))
    return scores
