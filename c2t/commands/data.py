"""Commands that make data and classifiers: harvest, train, finetune."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from c2t import checkpoints, reports, terminal, training
from c2t import harvest as harvesting
from c2t import info as information
from c2t import options as o
from c2t.classifier import TreeClassifier
from c2t.commands import shared
from c2t.prompts import default_prompts, spread
from c2t.records import describe as describe_harvest
from c2t.records import is_complete, read_shards
from c2t.training_data import TrainSettings

HARVEST, TRAIN, FINETUNE = harvesting.HarvestSettings(), TrainSettings(), training.FINETUNE


def harvest(
    pair: o.PairName = None,
    target: o.Target = None,
    draft: o.Draft = None,
    prompts: o.Prompts = None,
    out: o.Out = None,
    k: Annotated[int, typer.Option("--k", help="Children per node, nodes expanded per level.")] = HARVEST.K,
    levels: Annotated[int, typer.Option(help="Levels of drafted nodes.")] = HARVEST.levels,
    m: Annotated[int, typer.Option("--m", help="Entropy over the M most probable tokens.")] = HARVEST.M,
    live: o.Live = HARVEST.live,
    limit: o.Limit = None,
    max_new_tokens: o.MaxNewTokens = HARVEST.max_new_tokens,
    temperature: o.Temperature = HARVEST.temperature,
    seed: o.Seed = HARVEST.seed,
    batch: Annotated[int, typer.Option(help="Conversations at a time.")] = HARVEST.batch,
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted harvest.")] = False,
    overwrite: o.Overwrite = False,
    device: o.Device = None,
    dtype: o.Dtype = None,
    device_map: o.DeviceMap = None,
    json: o.Json = None,
) -> None:
    """Write the nodes of full EAGLE-2 trees along the target's texts.

    Goes to data/harvest/PAIR without --out; there an interrupted harvest is finished.
    """
    settings = harvesting.HarvestSettings(k, levels, m, max_new_tokens, temperature, seed, live, batch)
    loaded = shared.load(pair, target, draft, device, dtype, device_map)
    files = prompts or default_prompts(loaded.name, "harvest")
    chosen = spread(shared.read(files), limit)
    folder = out or checkpoints.harvest_of(loaded.name)
    resume = resume or (out is None and not overwrite)
    complete = resume and is_complete(folder)
    old = sum(shard["rows"] for shard in read_shards(folder).values()) if resume and folder.is_dir() else 0
    nodes = k + (levels - 1) * k * k
    with terminal.progress("harvest", "{task.fields[rows]:,} rows", "{task.fields[speed]:.1f} trees/s") as bar:
        task = bar.add_task("", total=sum(len(prompt.turns) for prompt in chosen), rows=old, speed=0.0)

        def tell(texts: int, rows: int) -> None:
            bar.update(task, completed=texts, rows=rows, speed=(rows - old) / nodes / (bar.tasks[0].elapsed or 1))

        done = harvesting.harvest(loaded, chosen, folder, settings, resume=resume, overwrite=overwrite, progress=tell)
    if complete:
        terminal.say(f"{folder} is complete already; --overwrite makes it anew.")
    shared.show(information.folder(folder))
    figures = {"rows": done.rows, "trees": done.trees, "positives": done.positives, "texts": len(done.prompts)}
    terminal.result(json, "harvest", figures, done.provenance)


def train(
    data: o.Data = None,
    out: o.Out = None,
    hidden: Annotated[int, typer.Option(help="Hidden units.")] = TRAIN.hidden,
    features: Annotated[str, typer.Option(help="Inputs, separated by commas.")] = ",".join(TRAIN.features),
    epochs: o.Epochs = TRAIN.epochs,
    lr: o.LearningRate = TRAIN.lr,
    batch_size: o.BatchSize = TRAIN.batch_size,
    negatives: Annotated[int, typer.Option(help="Sampled per positive; 0: all of them.")] = TRAIN.negatives or 0,
    seed: o.Seed = TRAIN.seed,
    logger: o.Logger = training.LOGGERS[0],
    overwrite: o.Overwrite = False,
    json: o.Json = None,
) -> None:
    """Train a classifier on harvests.

    Without --out it goes to checkpoints/local/PAIR/classifier and replaces the one made there before.
    """
    names = tuple(name.strip() for name in features.split(","))
    settings = TrainSettings(names, hidden, epochs, lr, batch_size, negatives, seed=seed)
    folders = harvests(data, "tiny")
    place = out or _local(folders)
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
    logger: o.Logger = training.LOGGERS[0],
    overwrite: o.Overwrite = False,
    json: o.Json = None,
) -> None:
    """Adapt a trained classifier to new harvests.

    Without --out it goes to checkpoints/local/PAIR-finetuned/classifier (its NAME is PAIR-finetuned) and replaces the
    one made there before. Without DATA it learns from the embedded pair's harvest, else from that of --from.
    """
    classifier = TreeClassifier.from_pretrained(source)
    settings = TrainSettings(fraction=fraction, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)
    folders = harvests(data, "tiny", source)
    place = out or _local(folders, "-finetuned")
    result = training.finetune(
        folders, classifier, place, settings, logger, overwrite or out is None, progress=terminal.watched()
    )
    _trained("finetune", result, settings, folders, json)


def _local(harvests: list[Path], suffix: str = "") -> Path:
    name = describe_harvest(harvests[0]).provenance["pair"] + suffix
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
