"""The network of a classifier of c2t, read from its folder (config.json, model.safetensors) without c2t.

This file is the same in c2t-vllm and c2t-sglang: each package stands alone.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

CONDITIONAL = ("accepted_given_parent", "step")  # labels of conditional classifiers; "step" is that of c2t 0.1
# Inputs by their names in config.json, each from the columns of a drafted token.
FEATURES = {
    "joint_prob": lambda of: of["log_joint"].exp(),
    "log_joint": lambda of: of["log_joint"],
    "log_prob": lambda of: of["log_prob"],
    "log_max_prob": lambda of: of["max_log_prob"],
    "max_prob_logit": lambda of: torch.logit(of["max_log_prob"].exp(), eps=1e-6),
    "rank": lambda of: of["rank"],
    "entropy": lambda of: of["entropy"],
    "depth": lambda of: of["depth"],
}


class ClassifierError(ValueError):
    """A folder that holds no classifier that can be used here."""


@dataclass(frozen=True)
class Network:
    """Layers (weight, bias) of a classifier, with ReLU between them.

    M: the entropy is that over the M most probable tokens (None: all). conditional: the network estimates whether a
    token is accepted if its parent is; otherwise, whether the whole path is. shift: what is added to the last layer's
    result to make its sigmoid a probability.
    """

    features: tuple[str, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]
    M: int | None
    conditional: bool
    shift: float

    @classmethod
    def load(cls, folder: str | Path, known: Collection[str] = tuple(FEATURES)) -> "Network":
        """Read a folder; ClassifierError if it holds no classifier, or one with inputs that are not `known`."""
        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            weights = load_file(folder / "model.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise ClassifierError(f"{folder} holds no classifier of c2t: {error}") from error
        try:
            return cls._of(config, weights, folder, known)
        except (ArithmeticError, AttributeError, KeyError, TypeError) as error:
            raise ClassifierError(
                f"{folder / 'config.json'} does not describe a classifier of c2t: {error!r}"
            ) from error

    @classmethod
    def _of(cls, config: dict, weights: Mapping[str, Tensor], folder: Path, known: Collection[str]) -> "Network":
        layers, M, kept = config.get("layers", 2), config.get("M", 1000), config["negatives_kept"]
        if config["schema_version"] != 1 or not (2 <= layers <= 64 and (M is None or M >= 1) and 0 < kept <= 1):
            raise ClassifierError(f"{folder / 'config.json'} does not describe a classifier of c2t, schema version 1")
        features = config.get("features", ["joint_prob", "entropy", "depth"])
        if unknown := [name for name in features if name not in known]:
            raise ClassifierError(
                f"{folder} reads {', '.join(unknown)}, which the engine does not give; train one on {', '.join(known)}"
            )
        names = ["hidden", *(f"further.{number}" for number in range(layers - 2)), "output"]
        sizes = [len(features), *[config.get("hidden", 48)] * (len(names) - 1), 1]
        shapes = {f"{name}.weight": (n, m) for name, m, n in zip(names, sizes, sizes[1:], strict=False)}
        shapes |= {f"{name}.bias": (n,) for name, n in zip(names, sizes[1:], strict=True)}
        if {name: tuple(weight.shape) for name, weight in weights.items()} != shapes:
            raise ClassifierError(f"{folder / 'model.safetensors'} does not fit its config.json")
        return cls(
            features=tuple(features),
            layers=tuple((weights[f"{name}.weight"].float(), weights[f"{name}.bias"].float()) for name in names),
            M=M,
            conditional=config.get("label") in CONDITIONAL,
            shift=math.log(kept),
        )

    def to(self, device: torch.device | str) -> "Network":
        """Return the network with its weights on a device."""
        layers = tuple((weight.to(device), bias.to(device)) for weight, bias in self.layers)
        return replace(self, layers=layers)

    def __call__(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Return the probability of acceptance of tokens, from their columns (see FEATURES), all of one shape."""
        x = torch.stack([FEATURES[name](columns).float() for name in self.features], dim=-1)
        for weight, bias in self.layers[:-1]:
            x = torch.relu(torch.nn.functional.linear(x, weight, bias))
        return torch.sigmoid(torch.nn.functional.linear(x, *self.layers[-1])[..., 0] + self.shift)
