"""The classifier of C2T (section 4.1): a two-layer network that estimates whether a drafted node will be accepted. With
other inputs and one more layer it is MCSD+'s decision models (section 3.3)."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from jaxtyping import Float
from pydantic import BeforeValidator, Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from c2t.errors import InputError, check_kind, counted, one_line, short_repr
from c2t.kernels.device import checked_device
from c2t.kernels.features import FEATURES, WIDE, Column
from c2t.kernels.network import COLUMNS, Network, confidence, serves
from c2t.storage import paths as checkpoints
from c2t.storage.checked import CLOSED, Positive, Share, check_fields, check_version, from_json, read_file
from c2t.storage.checksum import checksum

SCHEMA_VERSION: Final = 1
CONDITIONAL: Final = "accepted_given_parent"  # label: acceptance of a node if its parent is accepted
OLD_LABELS = {"step": CONDITIONAL}  # in files of version 0.1
FILES = ("config.json", "model.safetensors")
STORED = {torch.float32, torch.float16, torch.bfloat16, torch.float64}  # types of weights in files
CARD = Path(__file__).with_name("classifier_card.md")  # a template of Jinja


def features(nodes: Any, names: Sequence[str]) -> Float[Tensor, "... F"]:
    """Return the network's inputs, in the order of `names`, from a Tree, Nodes or Records; InputError for other
    objects."""
    try:
        values = {name: FEATURES[name](nodes).float() for name in known_features(names)}
    except AttributeError as error:
        raise InputError(f"{short_repr(nodes)} has no column {error.name}: give a Tree, Nodes or Records") from error
    return torch.cat([value if name in WIDE else value[..., None] for name, value in values.items()], dim=-1)


def known_features(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` as a tuple; InputError for an unknown or repeated feature, and for none."""
    unknown = [name for name in names if name not in FEATURES]
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise InputError(f"features name {twice[0]} twice: give each once")
    if unknown or not names:
        raise InputError(f"unknown features {', '.join(unknown) or '(none given)'}; known: {', '.join(FEATURES)}")
    return tuple(names)


Finite = Annotated[float, Field(allow_inf_nan=False)]
Hidden = Annotated[int, Field(ge=1, le=2**16)]
Layers = Annotated[int, Field(ge=2, le=64)]
MOST_WEIGHTS = 2**24  # the paper's network has 241; MCSD+'s largest, on a hidden state, a million


def check_weights(inputs: int, hidden: int, layers: int) -> None:
    """Raise InputError for a network of more than MOST_WEIGHTS."""
    weights = hidden * (inputs + (layers - 2) * hidden + layers)
    if weights > MOST_WEIGHTS:
        sizes = f"{inputs} inputs, hidden = {hidden} and layers = {layers}"
        raise InputError(
            f"{sizes} are {counted(weights)} weights; at most {MOST_WEIGHTS:,} fit: lower hidden or layers"
        )


LabelName = Literal["accepted", "accepted_given_parent", "ratio"]  # see `c2t.training.settings.LABELS`


@dataclass(frozen=True)
class ClassifierConfig:
    """Inputs and size of a saved classifier, and its origin. Stored as `config.json`."""

    __pydantic_config__ = CLOSED
    features: tuple[str, ...] = ("joint_prob", "entropy", "depth")
    hidden: Hidden = 48
    layers: Layers = 2
    label: LabelName = "accepted"
    widths: dict[str, Annotated[int, Field(ge=1, le=2**20)]] = field(
        default_factory=dict
    )  # inputs of each feature that has several
    M: Positive | None = 1000  # entropy over the M most probable tokens; None: the whole vocabulary
    K: Positive | None = None  # of the harvest, as are the next four; None: not known, or harvests that differ
    levels: Positive | None = None
    pair: str | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None  # of the texts
    seed: int | None = None  # of the texts
    training_seed: int | None = None
    negatives: Positive | None = 1  # sampled per positive; None: all were used
    negatives_kept: Share = 1.0  # share of all negatives in one epoch, for the prior correction
    beta: Share = 0.5  # recommended threshold
    metrics: dict[str, Finite] = field(default_factory=dict)
    validation_prompts: tuple[str, ...] = ()  # "file:question_id" of the prompts that the metrics were measured on
    schema_version: Literal[1] = SCHEMA_VERSION

    def __post_init__(self):
        check_fields(self)
        known_features(self.features)
        if missing := [name for name in self.features if name in WIDE and name not in self.widths]:
            raise InputError(f"widths must name the number of inputs of {missing[0]}")
        check_weights(self.inputs, self.hidden, self.layers)

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
    """Network of F features -> hidden (-> hidden) -> 1 with ReLU and sigmoid: 241 parameters in the paper's default
    size.

    With the label CONDITIONAL it estimates whether a node is accepted if its parent is; C2T compares the product along
    a path with beta. name: the reference that it was loaded by.
    """

    name = "unnamed"
    # The network that was built last, and the settings and weight addresses that it was built from.
    _cached_network: tuple[tuple[ClassifierConfig, list[int]], Network] | None = None

    def __init__(self, config: ClassifierConfig = ClassifierConfig()):
        super().__init__()
        check_kind("config", config, ClassifierConfig, "a ClassifierConfig")
        self.config = config
        self.hidden = nn.Linear(config.inputs, config.hidden)
        self.further = nn.ModuleList(nn.Linear(config.hidden, config.hidden) for _ in range(config.layers - 2))
        self.output = nn.Linear(config.hidden, 1)

    def __repr__(self) -> str:
        config = self.config
        network = " -> ".join(map(str, [config.inputs, *[config.hidden] * (config.layers - 1), 1]))
        weights = sum(parameter.numel() for parameter in self.parameters())
        inputs = ", ".join(config.features)
        return f"TreeClassifier({self.name!r}: {inputs}; {network}, {weights:,} parameters; beta {config.beta:g})"

    def forward(self, nodes: Any, calibrated: bool = False) -> Float[Tensor, "..."]:
        """Return each node's confidence in (0, 1).

        calibrated: return the probability that the node is accepted (with the label CONDITIONAL: if its parent is), by
        correcting for the negatives that were left out in training.
        """
        if calibrated:
            return self.calibrate(self.logits(features(nodes, self.config.features)))
        if not torch.is_grad_enabled() and (network := self.network) is not None and serves(network, nodes):
            return confidence(network, nodes)
        return torch.sigmoid(self.logits(features(nodes, self.config.features)))

    def calibrate(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the probabilities of scores, corrected for the negatives that were left out in training."""
        return torch.sigmoid(logits + math.log(self.config.negatives_kept))

    def logits(self, x: Float[Tensor, "... F"]) -> Float[Tensor, "..."]:
        """Return the scores before the sigmoid, for a matrix of features."""
        x = torch.relu(self.hidden(x.to(self.hidden.weight.dtype)))
        for layer in self.further:
            x = torch.relu(layer(x))
        return self.output(x).squeeze(-1)

    @property
    def network(self) -> Network | None:
        """The classifier in the kernels' form; None if they cannot run it: more than two layers, layers that were
        replaced, or inputs that are no `Column` of COLUMNS."""
        layers, columns = (self.hidden, self.output), [FEATURES[name] for name in self.config.features]
        unchanged = type(self) is TreeClassifier and all(type(layer) is nn.Linear for layer in layers)
        if not unchanged or self.config.layers != 2 or not all(map(_readable, columns)):
            return None
        now = self.config, [weights.data_ptr() for layer in layers for weights in (layer.weight, layer.bias)]
        if self._cached_network is None or self._cached_network[0] != now:
            self._cached_network = now, self._as_network(columns)
        return self._cached_network[1]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, without the addresses of these weights."""
        return {**vars(self), "_cached_network": None}

    def _as_network(self, columns: Sequence[Any]) -> Network:
        return Network(
            features=tuple(columns),
            hidden_weight=self.hidden.weight.detach(),
            hidden_bias=self.hidden.bias.detach(),
            output_weight=self.output.weight.detach()[0],
            output_bias=self.output.bias.detach(),
            conditional=self.config.label == CONDITIONAL,
        )

    @classmethod
    def from_pretrained(
        cls, reference: str | Path, *, device: str | torch.device = "cpu", **hub: Any
    ) -> "TreeClassifier":
        """Load a classifier by NAME, from a folder, or from the Hub; InputError if it is missing or damaged.

        hub: `revision`, `token` and other arguments of `hf_hub_download`.
        """
        device = checked_device(device)
        folder = checkpoints.resolve(reference, checkpoints.CLASSIFIER)
        config_file, weights_file = _download(folder, hub) if isinstance(folder, str) else [folder / f for f in FILES]
        saved = _read_config(config_file)
        model = cls(ClassifierConfig(**{f.name: getattr(saved, f.name) for f in fields(ClassifierConfig)}))
        model.name = str(reference)
        _load_weights(model, weights_file)
        if saved.sha256 not in (None, _checksum(config_file, weights_file)):
            raise InputError(
                f"{config_file} and {weights_file.name} do not have their checksum, so one of them is damaged: get or "
                'train the classifier again; if you changed one yourself, take the entry "sha256" out of config.json'
            )
        return model.to(device).eval()

    def save_pretrained(self, save_directory: str | Path, **how: Any) -> str | None:
        """Save weights, config.json with a checksum of both, and the model card in a folder. `how`: as of
        PyTorchModelHubMixin. Raises OSError."""
        try:
            url = super().save_pretrained(save_directory, **how)
        except SafetensorError as error:  # of a full disk
            raise OSError(f"{save_directory}: {one_line(error)}") from error
        config, weights = (Path(save_directory) / name for name in FILES)
        document = json.loads(config.read_text()) | {"sha256": _checksum(config, weights)}
        config.write_text(json.dumps(document, sort_keys=True, indent=2))
        return url

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Return a model card with settings, metrics, and how to load the classifier with and without c2t."""
        config = self.config
        settings = {f.name: getattr(config, f.name) for f in fields(config)}
        rows = [(name, settings[name]) for name in settings if name not in ("widths", "metrics", "validation_prompts")]
        rows += [(f"{name} (validation)", f"{value:.4g}") for name, value in config.metrics.items()]
        return ModelCard.from_template(
            self._hub_mixin_info.model_card_data,
            template_path=str(CARD),
            config=config,
            rows=[(name, ", ".join(value) if name == "features" else value) for name, value in rows],
            conditional=config.label == CONDITIONAL,
            policy="C2T" if set(config.features).isdisjoint(WIDE) else "MCSDPlus",
        )


def _readable(feature: Any) -> bool:
    return isinstance(feature, Column) and feature.name in COLUMNS


@dataclass(frozen=True)
class _Saved(ClassifierConfig):
    """Content of config.json. sha256: checksum of the rest and of the weights; None in older ones."""

    label: Annotated[LabelName, BeforeValidator(lambda label: OLD_LABELS.get(str(label), label))] = "accepted"
    sha256: str | None = None


def _checksum(config: Path, weights: Path) -> str:
    document = json.loads(config.read_text(encoding="utf-8"))
    document.pop("sha256", None)
    return checksum(document, [weights.read_bytes()])


def _download(repo: str, hub: dict[str, Any]) -> list[Path]:
    try:
        return [Path(hf_hub_download(repo, name, **hub)) for name in FILES]
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = one_line(error)
        raise InputError(f"{repo} is no folder, and no classifier could be loaded from the Hub: {reason}") from error


def _read_config(path: Path) -> _Saved:
    if not path.exists():
        raise InputError(f"{path.parent} holds no classifier: there is no {path.name}")
    text = read_file(path)
    if b'"negatives_kept"' not in text:
        raise InputError(f"{path} does not describe a classifier of c2t")
    check_version(text, path, SCHEMA_VERSION)
    return from_json(_Saved, text, path)


def _load_weights(model: TreeClassifier, path: Path) -> None:
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is missing or damaged: {one_line(error)}") from error
    shapes, expected = (
        {name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (weights, model.state_dict())
    )
    for name in [*expected, *shapes]:
        if shapes.get(name) != expected.get(name):
            size = f"{model.config.inputs} features and hidden {model.config.hidden}"
            differ = " instead of ".join(f"{there.get(name, 'nothing')!s:.60}" for there in (shapes, expected))
            raise InputError(f"{path} does not fit its config.json ({size}): {short_repr(name)} is {differ}")
    if foreign := {tensor.dtype for tensor in weights.values()} - STORED:
        raise InputError(f"{path} holds weights of {foreign.pop()}: give float32, float16, bfloat16 or float64")
    weights = {name: tensor.float() for name, tensor in weights.items()}
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise InputError(f"{path} holds weights that are not finite in float32")
    model.float().load_state_dict(weights)
