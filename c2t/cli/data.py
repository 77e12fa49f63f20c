"""Commands that make data and classifiers: harvest, train, finetune."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from c2t.classifier import TreeClassifier
from c2t.cli import info as information
from c2t.cli import options as o
from c2t.cli import reports, shared, terminal
from c2t.errors import InputError
from c2t.harvest.settings import HarvestSettings
from c2t.prompts import default_prompts, spread
from c2t.storage import paths as checkpoints
from c2t.training.settings import FINETUNE, LOGGERS, MODELS, OLD_MODELS, TrainSettings

COUNTS = ("rows", "trees", "positives", "too_long")
HARVEST, TRAIN = HarvestSettings(), TrainSettings()


def harvest(
    pair: o.PairName = None,
    target: o.Target = None,
    draft: o.Draft = None,
    prompts: o.Prompts = None,
    out: o.Out = None,
    k: Annotated[int, typer.Option("--k", help="Children per node, nodes expanded per level.")] = HARVEST.K,
    levels: Annotated[int, typer.Option(help="Levels of drafted nodes.")] = HARVEST.levels,
    m: Annotated[int, typer.Option("--m", help="Entropy over the M most probable.")] = HARVEST.M,
    live: o.Live = HARVEST.live,
    limit: o.Limit = None,
    max_new_tokens: o.MaxNewTokens = HARVEST.max_new_tokens,
    temperature: o.Temperature = HARVEST.temperature,
    seed: o.Seed = HARVEST.seed,
    batch: Annotated[int, typer.Option(help="Conversations at a time.")] = HARVEST.batch,
    policy: o.Trees = HARVEST.policy,
    columns: o.Columns = "",
    positions: o.Positions = HARVEST.positions,
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted harvest.")] = False,
    overwrite: o.Overwrite = False,
    device: o.Device = None,
    dtype: o.Dtype = None,
    device_map: o.DeviceMap = None,
    json: o.Json = None,
) -> None:
    """Write the nodes of full EAGLE-2 trees, or of MCSD+'s forks, along the target's texts.

    Goes to data/harvest/PAIR (forks: PAIR-mcsd+) without --out; there an interrupted harvest is finished.
    """
    from c2t.harvest import harvest as harvesting  # noqa: PLC0415 - needs an extra
    from c2t.records.reader import is_complete  # noqa: PLC0415 - needs an extra

    settings = HarvestSettings(
        K=k,
        levels=levels,
        M=m,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        live=live,
        batch=batch,
        policy=policy,
        columns=tuple(filter(None, columns.split(","))),
        positions=positions,
    )
    loaded = shared.load(pair, target, draft, device, dtype, device_map)
    files = prompts or default_prompts(loaded.name, "harvest")
    chosen = spread(shared.read(files), limit)
    folder = out or checkpoints.harvest_of(loaded.name + (f"-{policy}" if policy != HARVEST.policy else ""))
    resume = resume or (out is None and not overwrite)
    complete, old = resume and is_complete(folder), _rows_in(folder) if resume else 0
    with terminal.progress("harvest", "{task.fields[rows]:,} rows", "{task.fields[speed]:.1f} trees/s") as bar:
        task = bar.add_task("", total=sum(len(prompt.turns) for prompt in chosen), rows=old, speed=0.0)

        def tell(texts: int, rows: int) -> None:
            trees = (rows - old) / settings.nodes
            bar.update(task, completed=texts, rows=rows, speed=trees / (bar.tasks[0].elapsed or 1))

        done = harvesting.harvest(loaded, chosen, folder, settings, resume=resume, overwrite=overwrite, progress=tell)
    if complete:
        terminal.say(f"{folder} is complete already; --overwrite makes it anew.")
    shared.show(information.folder(folder))
    figures = {name: getattr(done, name) for name in COUNTS} | {"texts": len(done.prompts)}
    terminal.result(json, "harvest", figures, done.provenance)


def train(
    data: o.Data = None,
    out: o.Out = None,
    model: Annotated[str, typer.Option(help=f"{', '.join(MODELS)}; the last two decide for mcsd+.")] = "c2t",
    hidden: Annotated[int, typer.Option(help="Hidden units.")] = TRAIN.hidden,
    features: Annotated[
        str | None, typer.Option(help="Inputs, by commas.", show_default="the model's: " + ",".join(TRAIN.features))
    ] = None,
    epochs: o.Epochs = TRAIN.epochs,
    lr: Annotated[
        float | None, typer.Option(help="Adam's.", show_default="the model's: 1e-3, c2t-conditional 3e-3")
    ] = None,
    batch_size: o.BatchSize = TRAIN.batch_size,
    negatives: Annotated[
        int | None, typer.Option(help="Sampled per positive; 0: all of them.", show_default="the model's: 1, others 0")
    ] = None,
    seed: o.Seed = TRAIN.seed,
    logger: o.Logger = LOGGERS[0],
    overwrite: o.Overwrite = False,
    json: o.Json = None,
) -> None:
    """Train a classifier on harvests.

    Without --out it goes to checkpoints/local/PAIR/classifier (other models: PAIR-MODEL, their NAME) and replaces the
    one made there before.
    """
    from c2t.training import fit as training  # noqa: PLC0415 - needs an extra

    model = OLD_MODELS.get(model, model)
    if model not in MODELS:
        raise InputError(f"no model is called {model!r}; known: {', '.join(MODELS)}")
    names = None if features is None else tuple(name.strip() for name in features.split(","))
    given = {"features": names, "lr": lr, "negatives": negatives}
    own = {name: value for name, value in given.items() if value is not None}
    settings = replace(MODELS[model], hidden=hidden, epochs=epochs, batch_size=batch_size, seed=seed, **own)
    folders = harvests(data, "tiny-mcsd+" if model.startswith("mcsd") else "tiny")
    place = out or _local(folders, "" if model == "c2t" else f"-{model}")
    result = training.train(folders, place, settings, logger, overwrite or out is None, progress=terminal.watched())
    _trained("train", result, settings, folders, json)


def finetune(
    source: Annotated[str, typer.Option("--from", help="Classifier to start from: NAME, folder or Hub id.")] = "tiny",
    data: o.Data = None,
    out: o.Out = None,
    fraction: o.Fraction = FINETUNE.fraction,
    epochs: o.Epochs = FINETUNE.epochs,
    lr: o.LearningRate = FINETUNE.lr,
    batch_size: o.BatchSize = FINETUNE.batch_size,
    seed: o.Seed = FINETUNE.seed,
    logger: o.Logger = LOGGERS[0],
    overwrite: o.Overwrite = False,
    json: o.Json = None,
) -> None:
    """Adapt a trained classifier to new harvests.

    Without --out it goes to checkpoints/local/PAIR-finetuned/classifier (its NAME is PAIR-finetuned) and replaces the
    one made there before. Without DATA it learns from the embedded pair's harvest, else from that of --from.
    """
    from c2t.training import fit as training  # noqa: PLC0415 - needs an extra

    classifier = TreeClassifier.from_pretrained(source)
    settings = TrainSettings(fraction=fraction, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)
    folders = harvests(data, "tiny", source)
    place = out or _local(folders, "-finetuned")
    result = training.finetune(
        folders, classifier, place, settings, logger, overwrite or out is None, progress=terminal.watched()
    )
    _trained("finetune", result, settings, folders, json)


def _rows_in(harvest: Path) -> int:
    from c2t.records.reader import read_shards  # noqa: PLC0415 - needs an extra

    return sum(shard["rows"] for shard in read_shards(harvest).values()) if harvest.is_dir() else 0


def _local(harvests: list[Path], suffix: str = "") -> Path:
    from c2t.records.reader import describe  # noqa: PLC0415 - needs an extra

    name = describe(harvests[0]).provenance["pair"] + suffix
    return checkpoints.root() / "checkpoints" / "local" / name / checkpoints.CLASSIFIER


def harvests(data: list[str] | None, *defaults: str) -> list[Path]:
    """Folders of harvests; a name means the default place of that pair's harvest."""
    if data:
        return [checkpoints.harvest_of(p) if checkpoints.is_name(p) and not Path(p).exists() else Path(p) for p in data]
    places = [checkpoints.harvest_of(name) for name in defaults if checkpoints.is_name(name)]
    return [next((place for place in places if place.is_dir()), places[0])]


def _trained(command: str, result: Any, settings: TrainSettings, folders: list[Path], json: str | None) -> None:
    terminal.table(*reports.training_table(result))
    terminal.say(reports.training_remarks(result))
    terminal.result(json, command, reports.training_figures(result), asdict(settings) | {"data": folders})
