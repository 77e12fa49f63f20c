"""The network, its calibration, and what a saved classifier can be loaded with."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from c2t.classifier import ClassifierConfig, TreeClassifier, features
from c2t.errors import InputError
from tests.flips import flips
from tests.rounding import assert_within, confidence_bound, growth

NODES = SimpleNamespace(
    log_joint=torch.rand(2, 5).log(),
    entropy=torch.rand(2, 5) * 6,
    depth=torch.randint(0, 10, (2, 5), dtype=torch.int64),
)
CONFIG = ClassifierConfig(
    pair="toy", K=10, levels=11, negatives_kept=0.01, metrics={"recall": 0.8}, validation_prompts=("a.jsonl:3",)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TreeClassifier(CONFIG).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_the_papers_network_has_241_parameters() -> None:
    assert sum(parameter.numel() for parameter in TreeClassifier().parameters()) == 241


def test_scores_are_the_two_layer_network_of_the_features() -> None:
    model = TreeClassifier(CONFIG).double()
    w = {name: value.detach() for name, value in model.named_parameters()}
    x = features(NODES, CONFIG.features).double()
    hidden = (x @ w["hidden.weight"].T + w["hidden.bias"]).clamp(min=0)
    expected = torch.sigmoid(hidden @ w["output.weight"][0] + w["output.bias"])
    assert_within(model(NODES), expected, confidence_bound(model, x, torch.float64))


def test_calibration_takes_back_the_share_of_negatives() -> None:
    """With one negative in a hundred kept, even odds in training are odds of 1 : 100 in decoding."""
    model = TreeClassifier(CONFIG)
    torch.nn.init.zeros_(model.output.weight)
    torch.nn.init.zeros_(model.output.bias)
    assert model(NODES).equal(torch.full((2, 5), 0.5))
    # the log-odds log 0.01 = -4.6 are rounded, and the sigmoid of them
    assert_within(model(NODES, calibrated=True), torch.full((2, 5), 1 / 101).double(), growth(10) / 101)
    model = TreeClassifier(replace(CONFIG, negatives_kept=1.0))
    assert torch.equal(model(NODES), model(NODES, calibrated=True))


def test_saved_and_loaded_is_the_same(folder: Path) -> None:
    saved = load_file(folder / "model.safetensors")
    loaded = TreeClassifier.from_pretrained(folder)
    assert loaded.config == CONFIG
    assert not loaded.training
    assert loaded.state_dict().keys() == saved.keys()
    assert all(torch.equal(value, saved[name]) for name, value in loaded.state_dict().items())


def test_names_are_found_under_the_root(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("C2T_HOME", str(tmp_path))
    place = tmp_path / "checkpoints" / "local" / "mine"
    place.mkdir(parents=True)
    folder.rename(place / "classifier")
    assert TreeClassifier.from_pretrained("mine").config.pair == "toy"
    with pytest.raises(InputError, match=r"'yours'; known: mine, smollm2, tiny; searched in"):
        TreeClassifier.from_pretrained("yours")
    with pytest.raises(InputError, match="c2t harvest --pair llama2-7b"):
        TreeClassifier.from_pretrained("llama2-7b")


def test_the_cards_numpy_lines_read_the_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (folder / "README.md").read_text()
    snippet = next(block for block in card.split("```python\n")[1:] if "safetensors.numpy" in block).split("```")[0]
    monkeypatch.chdir(folder)
    found: dict = {}
    exec(snippet, found)  # noqa: S102 - the card's own code
    x = np.array([0.5, 2.0, 1.0], np.float32)
    w = found["weights"]
    logit = w["output.weight"] @ np.maximum(w["hidden.weight"] @ x + w["hidden.bias"], 0) + w["output.bias"]
    expected = TreeClassifier.from_pretrained(folder).logits(torch.from_numpy(x))
    exact = TreeClassifier.from_pretrained(folder).double()
    bound = 4 * confidence_bound(exact, torch.from_numpy(x))  # of a sigmoid's slope of 1/4
    for found in (torch.from_numpy(logit)[0], expected):
        assert_within(found, exact.logits(torch.from_numpy(x)), bound)


def test_the_card_of_a_conditional_classifier_says_what_it_means(tmp_path: Path) -> None:
    TreeClassifier(ClassifierConfig(label="accepted_given_parent")).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "accept\nit if it accepts the one before, so the product along the path" in card


def test_the_card_tells_settings_and_metrics(folder: Path) -> None:
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    assert card.data.library_name == "c2t"
    assert "| recall (validation) | 0.8 |" in card.content
    assert "| pair | toy |" in card.content


def test_a_classifier_is_pushed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = {}

    def upload_folder(*, repo_id: str, folder_path: Path, **_: object) -> None:
        pushed.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()}, repo=repo_id)

    hub = SimpleNamespace(create_repo=lambda repo_id, **_: SimpleNamespace(repo_id=repo_id))
    hub.upload_folder = upload_folder
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", lambda token=None: hub)
    TreeClassifier(CONFIG).push_to_hub("you/name")
    assert pushed.keys() == {"repo", "config.json", "model.safetensors", "README.md"}
    assert pushed["repo"] == "you/name"
    assert json.loads(pushed["config.json"])["pair"] == "toy"


def test_hub_ids_are_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repo: str, name: str, **hub: str) -> str:
        asked.append((repo, name, hub))
        return str(folder / name)

    monkeypatch.setattr("c2t.classifier.hf_hub_download", download)
    assert TreeClassifier.from_pretrained("someone/c2t-toy", revision="main").config == CONFIG
    assert asked == [("someone/c2t-toy", name, {"revision": "main"}) for name in ("config.json", "model.safetensors")]


def test_what_a_hub_repository_holds_is_checked_as_any_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("c2t.classifier.hf_hub_download", lambda _, name: str(folder / name))
    edit(folder, hidden=12)
    with pytest.raises(InputError, match="does not fit its config"):
        TreeClassifier.from_pretrained("someone/c2t-toy")


def test_a_hub_id_without_network_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="someone/nothing is no folder, and no classifier") as raised:
        TreeClassifier.from_pretrained("someone/nothing", cache_dir=tmp_path)
    assert "\n" not in str(raised.value)


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def stored_as(dtype: torch.dtype, bias: float = 0) -> Callable[[Path], None]:
    """Store the weights in this type, with this value as the first bias."""

    def store(folder: Path) -> None:
        weights = {name: value.double() for name, value in load_file(folder / "model.safetensors").items()}
        weights["hidden.bias"][0] = bias
        save_file({name: value.to(dtype) for name, value in weights.items()}, folder / "model.safetensors")

    return store


REFUSED = ("float8_e4m3fn", "complex64", "int8")
MANY = {f"layers.{number}.weight": torch.ones(2) for number in range(400)}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"saved holds no classifier: there is no config\.json"),
        (lambda f: (f / "config.json").write_text('{"negatives_kept": '), r"config\.json: no JSON .EOF"),
        (lambda f: (f / "config.json").write_text('{"model_type": "llama"}'), "does not describe a classifier"),
        (lambda f: edit(f, features=["joint_prob", "colour"]), "unknown features colour; known: joint_prob"),
        (lambda f: edit(f, features=["joint_prob", "depth"]), "does not fit its config.json .2 features"),
        (lambda f: edit(f, hidden=12), "does not fit its config.json"),
        (lambda f: edit(f, hidden=0), "config.json: hidden = 0 must be at least 1"),
        (lambda f: edit(f, negatives_kept=0.0), "negatives_kept = 0.0 must be above 0"),
        (lambda f: edit(f, beta="x"), "config.json: beta = 'x' must be a number"),
        (lambda f: edit(f, M="x"), "config.json: M = 'x' must be a whole number"),
        (lambda f: edit(f, layers=2.5), "layers = 2.5 must be a whole number"),
        (lambda f: edit(f, widths=[]), "config.json: widths = .. must be an object"),
        (lambda f: edit(f, metrics={"recall": "x"}), "metrics.recall = 'x' must be a number"),
        (lambda f: edit(f, metrics=[]), "metrics = .. must be an object"),
        (lambda f: edit(f, features="depth"), "features = 'depth' must be a list"),
        (lambda f: edit(f, features=["depth", "depth"]), "features name depth twice"),
        (lambda f: edit(f, features=["hidden"]), "widths must name the number of inputs of hidden"),
        (lambda f: edit(f, colour=1), "config.json: colour is not known"),
        (lambda f: edit(f, label="twice"), "config.json: label = .twice. must be .accepted., .*.ratio."),
        (lambda f: edit(f, schema_version=99, colour=1), "schema version 99; this version of c2t reads 1"),
        (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors is missing or damaged"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x10"), r"model\.safetensors is missing or damaged"),
        (lambda f: save_file({"x": torch.ones(2)}, f / "model.safetensors"), "does not fit"),
        (lambda f: save_file(MANY, f / "model.safetensors"), "hidden.weight. is nothing instead of .48, 3."),
        (stored_as(torch.float32, float("nan")), "not finite in float32"),
        (stored_as(torch.float64, 1e300), "not finite in float32"),
        *((stored_as(getattr(torch, kind)), f"weights of torch.{kind}: give float32") for kind in REFUSED),
    ],
    ids=lambda value: "" if callable(value) else value.replace("\\", ""),
)
def test_damage_is_named_in_one_line(folder: Path, damage, message: str) -> None:
    damage(folder)
    with pytest.raises(InputError, match=message) as raised:
        TreeClassifier.from_pretrained(folder)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value).replace(str(folder), "")) < 250


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_floats_are_read(folder: Path, dtype: torch.dtype) -> None:
    stored_as(dtype)(folder)
    edit(folder, sha256=None)
    stored = load_file(folder / "model.safetensors")
    for name, value in TreeClassifier.from_pretrained(folder).state_dict().items():
        assert value.equal(stored[name].float()), name


def test_sizes_end_at_64_layers_and_2_to_the_24_weights() -> None:
    ClassifierConfig(layers=64)
    with pytest.raises(InputError, match="layers = 65 must be at most 64"):
        ClassifierConfig(layers=65)
    ClassifierConfig(hidden=4093, layers=3)
    with pytest.raises(InputError, match="16,785,400 weights; at most 16,777,216"):
        ClassifierConfig(hidden=4094, layers=3)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_flipped_bit_is_noticed_or_changes_nothing(folder: Path, name: str) -> None:
    whole = TreeClassifier.from_pretrained(folder)

    def same() -> bool:
        try:
            found = TreeClassifier.from_pretrained(folder)
        except InputError as error:
            return "\n" not in str(error)
        weights = found.state_dict()
        return found.config == whole.config and all(v.equal(weights[k]) for k, v in whole.state_dict().items())

    assert list(flips(folder / name, same, 300)) == []


def test_older_classifiers_without_a_checksum_are_read(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert len(config.pop("sha256")) == 64
    (folder / "config.json").write_text(json.dumps(config))
    assert TreeClassifier.from_pretrained(folder).config.pair == "toy"


def test_the_shipped_classifiers_have_checksums() -> None:
    shipped = list(Path(__file__).parents[1].glob("checkpoints/*/classifier/config.json"))
    assert len(shipped) >= 2
    assert [path for path in shipped if "sha256" not in json.loads(path.read_text())] == []
