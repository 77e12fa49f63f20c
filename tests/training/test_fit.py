"""Training end to end on made-up harvests: it learns, it calibrates, it leaves one whole folder or none."""

import csv
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch
import wandb
from lightning.fabric.utilities.rank_zero import rank_zero_only

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.errors import InputError
from c2t.records.reader import read_records
from c2t.training import fit as training
from c2t.training.data import NegativeSampling, NodeData
from c2t.training.fit import TrainClassifier, finetune, train
from c2t.training.metrics import Validation, evaluate
from c2t.training.one_process import OneProcess
from c2t.training.settings import MODELS, TrainSettings
from tests.harvests import PROVENANCE, make_harvest, trees
from tests.rounding import figure, roughly

QUICK = TrainSettings(min_steps=150)
NO_VALIDATION = Validation(torch.empty(0, 3), torch.empty(0, dtype=torch.bool), torch.empty(0, dtype=torch.int64))


@pytest.fixture(scope="session")
def harvest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_harvest(tmp_path_factory.mktemp("harvest") / "toy", prompts=20, trees_each=5)


@pytest.fixture(scope="session")
def trained(harvest: Path, tmp_path_factory: pytest.TempPathFactory) -> training.Result:
    return train([harvest], tmp_path_factory.mktemp("trained") / "classifier", replace(QUICK, min_steps=600, lr=1e-2))


def train_for_an_epoch(module: TrainClassifier, loader: NegativeSampling) -> None:
    nothing = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    with training.silenced_lightning():
        trainer = L.Trainer(accelerator="cpu", plugins=OneProcess(), max_epochs=1, **nothing)
        trainer.fit(module, loader)


def test_it_learns_and_saves_the_chosen_epoch(harvest: Path, trained: training.Result) -> None:
    assert trained.metrics.average_precision > 20 * trained.before.average_precision
    assert trained.metrics == trained.history[trained.chosen]
    assert len(trained.history) == 10
    assert trained.steps >= 600
    loaded = TreeClassifier.from_pretrained(trained.out)
    nodes = NodeData([harvest], TrainSettings())
    with torch.inference_mode():
        logits = loaded.logits(nodes.validation.x)
    assert evaluate(logits, nodes.validation) == figure(trained.metrics)


def test_the_config_says_what_it_was_trained_on(harvest: Path, trained: training.Result) -> None:
    config = TreeClassifier.from_pretrained(trained.out).config
    nodes = NodeData([harvest], TrainSettings())
    harvested = {name: PROVENANCE[name] for name in ("M", "K", "levels", "pair", "temperature", "seed")}
    assert config == ClassifierConfig(
        **harvested,
        training_seed=0,
        negatives_kept=nodes.training.negatives_kept,
        metrics=trained.metrics._asdict(),
        validation_prompts=nodes.validation_prompts,
    )
    assert 0.001 < config.negatives_kept < 0.02


def test_csv_has_a_line_per_epoch_and_settings_stand_beside_it(trained: training.Result) -> None:
    saved = (trained.out / "hparams.yaml").read_text()
    assert [name for name in asdict(QUICK) if f"{name}:" not in saved] == []
    lines = list(csv.DictReader((trained.out / "metrics.csv").open()))
    assert [float(line["average_precision"]) for line in lines] == figure(
        [metrics.average_precision for metrics in trained.history], 1, torch.float32
    )
    assert all(0 < float(line["loss"]) < 1 for line in lines)
    assert [path.name for path in trained.out.parent.iterdir()] == ["classifier"]


@pytest.mark.slow
def test_same_seed_same_weights(harvest: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = train([harvest], tmp_path / "a", QUICK).classifier.state_dict()
    torch.manual_seed(2)
    second = train([harvest], tmp_path / "b", QUICK).classifier.state_dict()
    other = train([harvest], tmp_path / "c", replace(QUICK, seed=1)).classifier.state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert not torch.equal(first["hidden.weight"], other["hidden.weight"])


def test_calibrated_scores_are_probabilities() -> None:
    """Nodes whose acceptance is known: P = joint_prob / 10. Sampling one negative per positive hides it; the
    correction gives it back."""
    torch.manual_seed(0)
    joint = torch.rand(400_000)
    x = torch.stack([joint, torch.zeros_like(joint), torch.zeros_like(joint)], -1)
    accepted = torch.rand(400_000) < joint / 10
    settings = TrainSettings(epochs=1, min_steps=500, lr=1e-2)
    data = NegativeSampling(x, accepted, torch.ones_like(accepted), settings)
    model = TreeClassifier(ClassifierConfig(negatives_kept=data.negatives_kept))
    train_for_an_epoch(TrainClassifier(model, NO_VALIDATION, settings), data)
    probe = torch.tensor([0.2, 0.5, 0.9])
    zero = torch.zeros_like(probe)
    nodes = SimpleNamespace(log_joint=probe.log(), entropy=zero, depth=zero)
    with torch.inference_mode():
        assert model(nodes, calibrated=True).tolist() == roughly((probe / 10).tolist(), 0.2)
        assert (model(nodes) > 3 * probe / 10).all()


def test_finetune_starts_where_the_source_stopped(harvest: Path, trained: training.Result, tmp_path: Path) -> None:
    other = make_harvest(tmp_path / "other", 20, 5, provenance=PROVENANCE | {"pair": "other"})
    settings = replace(training.FINETUNE, min_steps=100)
    result = finetune([other], trained.classifier, tmp_path / "fine", settings)
    assert result.before.average_precision > 0.5 * trained.metrics.average_precision
    assert result.rows < trained.rows / 5  # a tenth of the prompts
    assert result.classifier.config.pair == "other"
    change = result.classifier.hidden.weight - trained.classifier.hidden.weight
    assert 0 < change.abs().max() < 0.1  # 100 steps of at most 1e-4


def test_finetune_keeps_the_sources_shape_and_warns_of_another_m(harvest: Path, tmp_path: Path) -> None:
    source = TreeClassifier(ClassifierConfig(features=("depth", "joint_prob"), hidden=6, negatives=3, beta=0.1, M=50))
    with pytest.warns(UserWarning, match="M = 50, this harvest 1000"):
        result = finetune([harvest], source, tmp_path / "fine", replace(training.FINETUNE, min_steps=20))
    kept = result.classifier.config
    assert (kept.features, kept.hidden, kept.negatives, kept.beta) == (("depth", "joint_prob"), 6, 3, 0.1)


def test_finetune_on_rows_of_another_width_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TreeClassifier(ClassifierConfig(features=("hidden",), widths={"hidden": 8}))
    monkeypatch.setattr(training, "NodeData", lambda *_: SimpleNamespace(widths={"hidden": 6}))
    with pytest.raises(InputError, match="give harvests of its pair, or train a new one"):
        finetune([tmp_path], source, tmp_path / "fine")


def test_conditional_confidences_are_probabilities(harvest: Path, tmp_path: Path) -> None:
    """In these harvests a node whose parent is accepted is so in 70 % of the cases if it is the first of its siblings,
    in 0.3^r 70 % if it is of rank r, whatever the draft says of it."""
    result = train([harvest], tmp_path / "steps", replace(MODELS["c2t-conditional"], min_steps=1000))
    classifier = TreeClassifier.from_pretrained(tmp_path / "steps")
    config = classifier.config
    assert (config.label, config.beta, config.negatives) == ("accepted_given_parent", 0.05, None)
    records = read_records([harvest], ["log_prob", "max_log_prob", "rank"])
    with torch.no_grad():
        confidence = classifier(records)
    for rank in range(3):
        mean = float(confidence[records.rank == rank].mean())
        assert mean == roughly(0.7 * 0.3**rank, 0.25)
    assert result.metrics.average_precision > 0.5


def test_chunked_steps_are_plain_steps() -> None:
    """One chunk of four batches moves the weights as four ordinary steps do."""
    x, accepted = torch.rand(40, 3), torch.rand(40) < 0.5
    settings = TrainSettings(batch_size=10, negatives=None, epochs=1, min_steps=0)
    chunks = [NegativeSampling(x, accepted, torch.ones_like(accepted), settings) for _ in range(2)]
    chunked, plain = TreeClassifier(), TreeClassifier()
    plain.load_state_dict(chunked.state_dict())
    module = TrainClassifier(chunked, NO_VALIDATION, settings)
    train_for_an_epoch(module, chunks[0])
    optimiser = torch.optim.Adam(plain.parameters(), settings.lr, fused=True)  # the same operations, so the same bits
    rows, labels = next(iter(chunks[1]))
    for xs, ys in zip(rows.split(10), labels.split(10), strict=True):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(plain.logits(xs), ys)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, value in plain.state_dict().items():
        assert chunked.state_dict()[name].equal(value), name
    assert module.steps == 4


@pytest.mark.parametrize("model", ["c2t", "c2t-conditional"])
def test_paths_that_underflow_train(tmp_path: Path, model: str) -> None:
    """With P = 0 the paper's network learns from them; logs of 0 are left out."""
    joint = trees(2, seed=0, K=3, levels=3)["joint_prob"]
    joint[3::4] = 0
    make_harvest(tmp_path / "rows", prompts=8, trees_each=2, replace={"joint_prob": joint}, K=3, levels=3)
    result = train([tmp_path / "rows"], tmp_path / model, replace(MODELS[model], min_steps=20))
    assert (result.dropped > 0) == (model == "c2t-conditional")
    logs = replace(QUICK, features=("log_joint", "depth"), min_steps=20)
    assert train([tmp_path / "rows"], tmp_path / "logs", logs).dropped == 8 * len(joint[3::4])


JOBS = {
    "sbatch": {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "run", "SLURM_PROCID": "1"},
    "torchrun": {
        **{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"},
    },
}


@pytest.mark.parametrize("job", JOBS)
def test_training_is_one_process_in_any_job(
    harvest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    settings = replace(QUICK, min_steps=20, epochs=2)
    alone = train([harvest], tmp_path / "alone", settings)
    for name, value in JOBS[job].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # as Lightning reads it from them when it is imported
    within = train([harvest], tmp_path / "within", settings)
    assert within.history == alone.history
    tuned = finetune([harvest], within.classifier, tmp_path / "tuned", replace(settings, fraction=0.5))
    for made in (alone, within, tuned):
        assert {"metrics.csv", "hparams.yaml"} <= {path.name for path in made.out.iterdir()}
    assert (within.out / "metrics.csv").read_bytes() == (alone.out / "metrics.csv").read_bytes()
    assert {name: os.environ.get(name) for name in JOBS[job]} == JOBS[job]


def test_a_failure_leaves_nothing(harvest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TreeClassifier, "_save_pretrained", crash)
    with pytest.raises(KeyboardInterrupt):
        train([harvest], tmp_path / "made" / "classifier", QUICK)
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda harvest, out: train([harvest], out, QUICK),
        lambda harvest, out: finetune([harvest], TreeClassifier(), out, QUICK),
    ],
    ids=["train", "finetune"],
)
def test_a_classifier_that_came_while_the_rows_were_read_stays(
    harvest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path, Path], training.Result]
) -> None:
    out = tmp_path / "classifier"

    def late(*given: object) -> NodeData:
        TreeClassifier().save_pretrained(out)
        return NodeData(*given)

    monkeypatch.setattr(training, "NodeData", late)
    with pytest.raises(InputError, match="holds a classifier: replace it with --overwrite"):
        call(harvest, out)
    assert TreeClassifier.from_pretrained(out).config == ClassifierConfig()


def test_a_picture_that_fails_loses_no_classifier(
    harvest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the network is gone")

    monkeypatch.setattr(training, "_log_reliability", fail)
    with pytest.raises(OSError, match="the network is gone") as raised:
        train([harvest], tmp_path / "classifier", replace(QUICK, min_steps=10, epochs=1))
    out = tmp_path / "classifier"
    assert raised.value.__notes__ == [f"{out} holds the whole classifier; its reliability picture is missing"]
    assert TreeClassifier.from_pretrained(out).config.pair == "toy"


def test_a_package_of_the_picture_is_missed_before_the_training(
    harvest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.delitem(sys.modules, "c2t.training.reliability", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(L.Trainer, "fit", lambda *_: pytest.fail("trained"))
    with pytest.raises(ModuleNotFoundError, match="matplotlib"):
        train([harvest], tmp_path / "classifier", QUICK, logger="wandb")


@pytest.mark.slow
def test_out_is_only_replaced_on_request(harvest: Path, trained: training.Result, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a classifier: replace it with --overwrite"):
        train([harvest], trained.out)
    out = tmp_path / "classifier"
    train([harvest], out, replace(QUICK, hidden=6))
    train([harvest], out, replace(QUICK, hidden=12), overwrite=True)
    assert TreeClassifier.from_pretrained(out).config.hidden == 12


@pytest.mark.slow
def test_wandb_works_offline(harvest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train([harvest], tmp_path / "classifier", replace(QUICK, min_steps=10), logger="wandb")
    [run] = (tmp_path / "wandb").glob("offline-run-*")
    assert len(list(run.glob("files/media/images/reliability*.png"))) == 1
    assert wandb.run is None


@pytest.mark.slow
def test_tensorboard_has_the_metrics_and_the_reliability_picture(harvest: Path, tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = train([harvest], tmp_path / "classifier", replace(QUICK, min_steps=10), logger="tensorboard")
    [run] = (tmp_path / "tensorboard" / "classifier").iterdir()
    events = reading.EventAccumulator(str(run))
    events.Reload()
    for name in ("recall", "theta", "average_precision"):
        logged = [event.value for event in events.Scalars(name)]
        assert logged == figure([getattr(metrics, name) for metrics in result.history], 1, torch.float32)
    [image] = events.Images("reliability")
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert image.width > 300


def test_a_logger_that_nobody_knows_is_refused(harvest: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown logger 'papyrus'; known: csv, wandb, tensorboard"):
        train([harvest], tmp_path / "classifier", QUICK, logger="papyrus")
    assert list(tmp_path.iterdir()) == []
