"""Training and fine-tuning of the classifier on harvested nodes (C2T, sections 4.1, 5.2 and 5.3)."""

import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from torch import Tensor, nn

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.errors import InputError
from c2t.output.progress import ProgressCallback
from c2t.storage import paths as checkpoints
from c2t.training.data import NodeData
from c2t.training.metrics import Validation, evaluate, select
from c2t.training.one_process import OneProcess, first_rank
from c2t.training.result import Result
from c2t.training.settings import FINETUNE, LOGGERS, TrainSettings


def train(
    data: Sequence[str | Path],
    out: Path,
    settings: TrainSettings = TrainSettings(),
    logger: str = "csv",
    overwrite: bool = False,
    progress: ProgressCallback = lambda done, of, doing: None,
) -> Result:
    """Train a new classifier on harvests and save it in `out`. InputError as in `NodeData` and `check_out`."""
    checkpoints.check_classifier_out(out, overwrite)
    nodes = NodeData(data, settings)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        classifier = TreeClassifier(config_of(nodes, settings))
    return _fit(classifier, nodes, settings, out, logger, overwrite, progress)


def finetune(
    data: Sequence[str | Path],
    source: TreeClassifier,
    out: Path,
    settings: TrainSettings = FINETUNE,
    logger: str = "csv",
    overwrite: bool = False,
    progress: ProgressCallback = lambda done, of, doing: None,
) -> Result:
    """Continue the training of a classifier on a share of new harvests (C2T, section 5.3). Features, size, sampling,
    label and the recommended beta stay the source's."""
    checkpoints.check_classifier_out(out, overwrite)
    old = source.config
    unchanged = {name: getattr(old, name) for name in ("features", "hidden", "negatives", "layers", "label", "beta")}
    settings = replace(settings, **unchanged)
    nodes = NodeData(data, settings)
    if nodes.widths != old.widths:
        raise InputError(
            f"the classifier reads {old.widths} numbers of these columns, the harvests have {nodes.widths}: give "
            "harvests of its pair, or train a new one"
        )
    if nodes.provenance("M") != old.M:
        warnings.warn(
            f"the classifier saw entropies over M = {old.M}, this harvest {nodes.provenance('M')}", stacklevel=2
        )
    classifier = TreeClassifier(config_of(nodes, settings))
    classifier.load_state_dict(source.state_dict())
    return _fit(classifier, nodes, settings, out, logger, overwrite, progress)


class TrainClassifier(L.LightningModule):
    """Binary cross-entropy and Adam. One Lightning step makes the optimiser steps of a whole chunk, by hand."""

    def __init__(self, classifier: TreeClassifier, validation: Validation, settings: TrainSettings):
        super().__init__()
        self.classifier, self.settings = classifier, settings
        self.held_out = validation
        self.automatic_optimization = False
        self.steps, self.history, self.weights = 0, [], []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with the settings' learning rate."""
        return torch.optim.Adam(self.classifier.parameters(), self.settings.lr, fused=True)

    def on_train_epoch_start(self) -> None:
        """Reset the mean loss of the epoch."""
        self.loss_sum, self.batches = torch.zeros(()), 0

    def training_step(self, chunk: tuple[Tensor, Tensor], _: int) -> None:
        """Make one optimiser step for each batch of the chunk."""
        wrapped = self.optimizers()
        batches = list(zip(*(column.split(self.settings.batch_size) for column in chunk), strict=True))
        for i, (x, accepted) in enumerate(batches, start=1):
            loss = nn.functional.binary_cross_entropy_with_logits(self.classifier.logits(x), accepted)
            wrapped.optimizer.zero_grad()
            loss.backward()
            # Lightning counts a step only if its wrapper makes it; the wrapper costs more than the step itself.
            (wrapped if i == len(batches) else wrapped.optimizer).step()
            self.loss_sum += loss.detach()
        self.steps += len(batches)
        self.batches += len(batches)

    def on_validation_epoch_start(self) -> None:
        """Forget the scores of the epoch before."""
        self.scores: list[Tensor] = []

    def validation_step(self, x: Tensor, _: int) -> None:
        """Store the scores of a batch."""
        self.scores.append(self.classifier.logits(x))

    def on_validation_epoch_end(self) -> None:
        """Compute the epoch's metrics and store its weights; InputError if scores or weights are not finite."""
        scores = torch.cat(self.scores)
        if not all(values.isfinite().all() for values in (scores, *self.classifier.parameters())):
            raise InputError(f"the training diverged: give a smaller lr than {self.settings.lr:g}")
        metrics = evaluate(scores, self.held_out)
        self.history.append(metrics)
        self.weights.append({name: value.clone() for name, value in self.classifier.state_dict().items()})
        self.log("average_precision", metrics.average_precision)
        self.log_dict({"loss": self.loss_sum / self.batches, "recall": metrics.recall, "theta": metrics.theta})


def _fit(
    classifier: TreeClassifier,
    nodes: NodeData,
    settings: TrainSettings,
    out: Path,
    logger: str,
    overwrite: bool,
    progress: ProgressCallback,
) -> Result:
    module = TrainClassifier(classifier, nodes.validation, settings)
    with torch.inference_mode():
        before = evaluate(classifier.logits(nodes.validation.x), nodes.validation)
    with checkpoints.replacing(out) as folder, silenced_lightning(), _one_thread(), first_rank():
        checkpoints.check_classifier_out(out, overwrite)  # again: another training may have ended since
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            plugins=OneProcess(),
            default_root_dir=folder,
            max_epochs=settings.epochs,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            logger=_logger(logger, folder, out, settings),
            callbacks=[_StepReporter(progress, settings.epochs * nodes.training.steps)],
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        start = time.perf_counter()
        trainer.fit(module, nodes)
        seconds = time.perf_counter() - start
        chosen = select(module.history)
        metrics = module.history[chosen]
        best = TreeClassifier(replace(classifier.config, metrics=metrics._asdict()))
        best.load_state_dict(module.weights[chosen])
        best.eval().save_pretrained(folder)
    try:
        with first_rank():
            _log_reliability(trainer.logger, best, nodes.validation, module.steps)
    except BaseException as error:
        error.add_note(f"{out} holds the whole classifier; its reliability picture is missing")
        raise
    return Result(
        classifier=best,
        out=out,
        metrics=metrics,
        history=module.history,
        chosen=chosen,
        before=before,
        rows=nodes.training.rows,
        dropped=nodes.dropped,
        steps=module.steps,
        seconds=seconds,
    )


class _StepReporter(Callback):
    """Reports after each chunk how many of `of` optimiser steps are done."""

    def __init__(self, progress: ProgressCallback, of: int):
        self.progress, self.of = progress, of

    def on_train_batch_end(self, trainer: L.Trainer, module: TrainClassifier, *_: object) -> None:
        doing = f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
        if module.history:
            doing += f", average precision {module.history[-1].average_precision:.3f}"
        self.progress(module.steps, self.of, doing)


def config_of(nodes: NodeData, settings: TrainSettings) -> ClassifierConfig:
    """Return the config of a classifier that is trained on these rows."""
    return ClassifierConfig(
        features=tuple(settings.features),
        hidden=settings.hidden,
        layers=settings.layers,
        label=settings.label,
        beta=settings.beta,
        widths=nodes.widths,
        **{key: nodes.provenance(key) for key in ("M", "K", "levels", "pair", "temperature", "seed")},
        training_seed=settings.seed,
        negatives=settings.negatives or None,
        negatives_kept=nodes.training.negatives_kept,
        validation_prompts=nodes.validation_prompts,
    )


def _logger(name: str, folder: Path, out: Path, settings: TrainSettings) -> Logger:
    """Return a logger. CSV files go into the classifier's own folder; the others write their runs next to it."""
    if name not in LOGGERS:
        raise InputError(f"unknown logger {name!r}; known: {', '.join(LOGGERS)}")
    if name != "csv":  # of extras: raise before the training, and before Lightning does, which words it otherwise
        import_module(name)
        import_module("c2t.training.reliability")
    if name == "csv":
        logger = CSVLogger(folder, name="", version="")
    elif name == "tensorboard":
        logger = TensorBoardLogger(out.parent / "tensorboard", name=out.name)
    else:
        logger = _wandb(out)
    logger.log_hyperparams({**asdict(settings), "features": list(settings.features)})
    return logger


def _wandb(out: Path) -> Logger:
    import wandb  # noqa: PLC0415 - slow to import, and only needed here

    logger = WandbLogger(project="c2t", save_dir=out.parent)
    try:
        logger.experiment.config  # noqa: B018 - starts the run
    except wandb.errors.UsageError as error:
        raise InputError(f"wandb: {error} Or set WANDB_MODE=offline.") from error
    return logger


@torch.inference_mode()
def _log_reliability(logger: Logger, best: TreeClassifier, validation: Validation, step: int) -> None:
    """Log the reliability picture of the saved classifier, where the logger can show one."""
    if isinstance(logger, CSVLogger):
        return
    from c2t.training.reliability import picture, reliability  # noqa: PLC0415 - needs an extra

    probability = best.calibrate(best.logits(validation.x).double())
    figure = picture(reliability(probability, validation), "the classifier")
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_figure("reliability", figure, step)
        logger.experiment.flush()
    elif isinstance(logger, WandbLogger):
        logger.log_image("reliability", [figure], step)
        logger.experiment.finish()  # else the next training of this process would continue the run


@contextmanager
def _one_thread() -> Iterator[None]:
    """Set torch to one thread: for a network this small two are slower when other work shares the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def silenced_lightning() -> Iterator[None]:
    """Silence Lightning's remarks on hardware and data loaders, which do not apply to this training."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
