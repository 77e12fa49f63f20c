"""The classifier of C2T (section 4.1): a two-layer network that says whether a drafted node will be accepted; with
other inputs, and a layer more, MCSD+'s decision models (section 3.3)."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from c2t.errors import InputError
from c2t.kernels.features import FEATURES, WIDE
from c2t.storage import paths as checkpoints

SCHEMA_VERSION = 1
CONDITIONAL = "accepted_given_parent"  # the label of a classifier of conditional acceptance: if the parent is accepted
OLD_LABELS = {"step": CONDITIONAL}  # in files of version 0.1
FILES = ("config.json", "model.safetensors")
KINDS = {"features": list, "validation_prompts": list, "widths": dict, "metrics": dict, "label": str}
ADDED = {"layers", "label", "widths"}  # not in the files of version 0.1


def features(nodes: Any, names: Sequence[str]) -> Float[Tensor, "... F"]:
    """The network's inputs, in the order of `names`, from anything with a node's columns: a Tree, or Records."""
    values = {name: FEATURES[name](nodes).float() for name in known_features(names)}
    return torch.cat([value if name in WIDE else value[..., None] for name, value in values.items()], dim=-1)


def known_features(names: Sequence[str]) -> tuple[str, ...]:
    """`names` themselves; InputError where one of them is no feature or there is none."""
    unknown = [name for name in names if name not in FEATURES]
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise InputError(f"features name {twice[0]} twice: give each once")
    if unknown or not names:
        raise InputError(f"unknown features {', '.join(unknown) or '(none given)'}; known: {', '.join(FEATURES)}")
    return tuple(names)


@dataclass(frozen=True)
class ClassifierConfig:
    """What a saved classifier is: its inputs and size, and where it comes from. Stored as `config.json`."""

    features: Sequence[str] = ("joint_prob", "entropy", "depth")
    hidden: int = 48
    layers: int = 2
    label: str = "accepted"  # what it says: see `c2t.training.data.LABELS`
    widths: dict[str, int] = field(default_factory=dict)  # inputs of each feature that has several
    M: int | None = 1000  # entropy over the M most probable tokens; None: the whole vocabulary
    K: int | None = None  # of the harvest, as are `levels` and `pair`
    levels: int | None = None
    pair: str | None = None
    negatives: int | None = 1  # sampled per positive; None: all were used
    negatives_kept: float = 1.0  # share of all negatives in one epoch, for the prior correction
    beta: float = 0.5  # recommended threshold
    metrics: dict[str, float] = field(default_factory=dict)
    validation_prompts: Sequence[str] = ()  # "file:question_id" of the prompts that the metrics were measured on
    schema_version: int = SCHEMA_VERSION

    @property
    def inputs(self) -> int:
        """Inputs of the network."""
        return sum(self.widths[name] if name in WIDE else 1 for name in known_features(self.features))


class TreeClassifier(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="c2t",
    license="apache-2.0",
    tags=["speculative-decoding"],
):
    """F features -> hidden (-> hidden) -> 1 with ReLU and sigmoid: 241 parameters in the paper's default size.

    With the label CONDITIONAL it says whether a node is accepted if its parent is; the product along a path is what C2T
    compares with beta. name: what it was loaded by.
    """

    name = "unnamed"

    def __init__(self, config: ClassifierConfig = ClassifierConfig()):
        super().__init__()
        self.config = config
        self.hidden = nn.Linear(config.inputs, config.hidden)
        self.further = nn.ModuleList(nn.Linear(config.hidden, config.hidden) for _ in range(config.layers - 2))
        self.output = nn.Linear(config.hidden, 1)

    def forward(self, nodes: Any, calibrated: bool = False) -> Float[Tensor, "..."]:
        """Return each node's confidence in (0, 1); calibrated: the probability that it is accepted (with the label
        CONDITIONAL: given that its parent is), with the negative sampling corrected for."""
        logits = self.logits(features(nodes, self.config.features))
        return torch.sigmoid(logits + math.log(self.config.negatives_kept) if calibrated else logits)

    def logits(self, x: Float[Tensor, "... F"]) -> Float[Tensor, "..."]:
        """The score before the sigmoid, from a matrix of features."""
        x = torch.relu(self.hidden(x.to(self.hidden.weight.dtype)))
        for layer in self.further:
            x = torch.relu(layer(x))
        return self.output(x).squeeze(-1)

    @classmethod
    def from_pretrained(
        cls, reference: str | Path, *, device: str | torch.device = "cpu", **hub: Any
    ) -> "TreeClassifier":
        """Load by NAME, from a folder, or from the Hub (`hub`: revision, token, ... of `hf_hub_download`)."""
        place = checkpoints.resolve(reference, checkpoints.CLASSIFIER)
        config_file, weights_file = _download(place, hub) if isinstance(place, str) else [place / f for f in FILES]
        model = cls(_read_config(config_file))
        model.name = str(reference)
        _load_weights(model, weights_file)
        return model.to(device).eval()

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Settings, metrics, and how to load the classifier with and without c2t."""
        return ModelCard(_card(self))


def _download(repo: str, hub: dict[str, Any]) -> list[Path]:
    try:
        return [Path(hf_hub_download(repo, name, **hub)) for name in FILES]
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{repo} is no folder, and no classifier could be loaded from the Hub: {reason}") from error


def _read_config(path: Path) -> ClassifierConfig:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        names = {f.name for f in fields(ClassifierConfig)}
        if not isinstance(values, dict) or not names - ADDED <= values.keys() <= names:
            raise InputError(f"{path} does not describe a classifier of c2t")
        values = {**values, "label": OLD_LABELS.get(str(values.get("label")), values.get("label", "accepted"))}
        _check(asdict(ClassifierConfig()) | values)
        return ClassifierConfig(**values | {name: tuple(values[name]) for name in ("features", "validation_prompts")})
    except FileNotFoundError as error:
        raise InputError(f"{path.parent} holds no classifier: there is no {path.name}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from error
    except (OSError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not readable JSON of a classifier: {error}") from error


def _check(values: dict[str, Any]) -> None:
    """InputError for what no training writes; JSON can hold any value anywhere."""
    if values["schema_version"] != SCHEMA_VERSION:
        raise InputError(f"schema version {values['schema_version']}; this version of c2t reads {SCHEMA_VERSION}")
    for name in ("hidden", "M", "K", "levels", "negatives"):
        if not _whole(values[name]) and (values[name] is not None or name == "hidden"):
            raise InputError(f"{name} must be at least 1, not {values[name]!r}")
    for name in ("beta", "negatives_kept"):
        if not isinstance(values[name], int | float) or not 0 < values[name] <= 1:
            raise InputError(f"{name} must be in (0, 1], not {values[name]!r}")
    for name, kind in KINDS.items():
        if not isinstance(values[name], kind):
            raise InputError(f"{name} = {values[name]!r} is no {kind.__name__}")
    wide = [name for name in known_features(values["features"]) if name in WIDE]
    if not _whole(values["layers"], 2) or not all(_whole(values["widths"].get(name)) for name in wide):
        raise InputError(f"layers must be at least 2, and widths name the inputs of {', '.join(WIDE)}")
    if not all(isinstance(value, int | float) for value in values["metrics"].values()):
        raise InputError("metrics must be numbers")


def _whole(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and value >= least


def _load_weights(model: TreeClassifier, path: Path) -> None:
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is missing or damaged: {error}") from error
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if found != expected:
        size = f"{model.config.inputs} features and hidden {model.config.hidden}"
        raise InputError(f"{path} does not fit its config.json ({size}): {found} instead of {expected}")
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise InputError(f"{path} holds weights that are not finite")
    model.load_state_dict(weights)


def _card(model: TreeClassifier) -> str:
    config = model.config
    info = model._hub_mixin_info.model_card_data.to_yaml()
    settings = {f.name: getattr(config, f.name) for f in fields(config)}
    rows = [(name, settings[name]) for name in settings if name not in ("metrics", "validation_prompts")]
    rows += [(f"{name} (validation)", f"{value:.4g}") for name, value in config.metrics.items()]
    table = "\n".join(f"| {name} | {', '.join(value) if name == 'features' else value} |" for name, value in rows)
    uses = "C2T" if set(config.features).isdisjoint(WIDE) else "MCSDPlus"
    provided = (
        " if it accepts the one before, so the product along the path counts" if config.label == CONDITIONAL else ""
    )
    pair = config.pair or "its pair"
    return CARD.format(info=info, table=table, pair=pair, policy=uses, provided=provided, **USES[uses](config.beta))


# What the network is for, by the policy that reads its features.
USES = {
    "C2T": lambda beta: {
        "purpose": "prunes draft trees for speculative decoding (C2T)",
        "effect": "tokens below the threshold `beta` are dropped",
        "argument": "",
        "settings": f", beta={beta}",
    },
    "MCSDPlus": lambda _: {
        "purpose": "decides when drafting stops (MCSD+, section 3.3)",
        "effect": "where it trusts no fork with at least `threshold`, no deeper level is drafted",
        "argument": "decision=",
        "settings": ", threshold=0.4",
    },
}

CARD = """---
{info}
---

# {policy} classifier for {pair}

A small network that {purpose}. It reads features of a drafted token and says how likely verification is to accept
it{provided}; {effect}.

| | |
|---|---|
{table}

```python
from c2t import TreeClassifier
from c2t.policies import {policy}

policy = {policy}({argument}TreeClassifier.from_pretrained("path/to/this/folder"){settings})
```

The weights in plain numpy:

```python
import json
import numpy as np

raw = open("model.safetensors", "rb").read()
start = 8 + int.from_bytes(raw[:8], "little")
table = {{k: v for k, v in json.loads(raw[8:start]).items() if k != "__metadata__"}}
cut = {{k: slice(*(start + offset for offset in v["data_offsets"])) for k, v in table.items()}}
weights = {{k: np.frombuffer(raw[cut[k]], np.float32).reshape(v["shape"]) for k, v in table.items()}}
```
"""
