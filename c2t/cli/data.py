"""Commands that make data and classifiers: harvest, train, finetune."""

from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from c2t.classifier import TreeClassifier
from c2t.cli import info as information
from c2t.cli import options as o
from c2t.cli import reports, shared, terminal
from c2t.errors import InputError
from c2t.harvest.extra_columns import COLUMNS
from c2t.harvest.settings import HarvestSettings
from c2t.harvest.shards import WHOLE, ShardNumber
from c2t.harvest.texts import JudgedTexts, judge, read_texts
from c2t.models.loading.load import Pair
from c2t.output.progress import progress_bar
from c2t.records.schema import MANIFEST, Harvest
from c2t.replay.prompts import default_prompts, spread
from c2t.storage import paths as checkpoints
from c2t.training.settings import FINETUNE, LOGGERS, MODELS, OLD_MODELS, TrainSettings

COUNTS = ("rows", "trees", "positives", "too_long")
HARVEST, TRAIN = HarvestSettings(), TrainSettings()
Logger = Annotated[str, typer.Option(help=f"Where to log the training: {', '.join(LOGGERS)}.")]
PROMPTS = 24  # default number of prompts, which takes some minutes on two cores


@o.with_models
def harvest(
    models: o.Models,
    context: terminal.Context,
    prompts: o.Prompts = None,
    out: Annotated[Path | None, o.folder_out("data/harvest/PAIR; with --policy mcsd+ PAIR-mcsd+")] = None,
    k: Annotated[int, typer.Option("--k", help="Children of a node; nodes to expand.")] = HARVEST.K,
    levels: Annotated[int, typer.Option(help="Levels of the trees.")] = HARVEST.levels,
    m: Annotated[int, typer.Option("--m", help="Tokens that the entropy is over.")] = HARVEST.M,
    live: o.Live = HARVEST.live,
    limit: o.Limit = PROMPTS,
    max_new_tokens: o.MaxNewTokens = HARVEST.max_new_tokens,
    temperature: o.Temperature = HARVEST.temperature,
    seed: o.Seed = HARVEST.seed,
    batch: Annotated[int, typer.Option(help="Conversations to run together.")] = HARVEST.batch,
    policy: o.Trees = HARVEST.policy,
    columns: Annotated[
        str, typer.Option(help=f"Further columns: {','.join(COLUMNS)}.", metavar="NAMES", rich_help_panel=o.RUN_PANEL)
    ] = "",
    positions: o.Positions = HARVEST.positions,
    texts: o.Texts = None,
    shard: o.Shard = None,
    merge: o.Merge = None,
    ray: o.Ray = None,
    workers: o.Workers = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted harvest in --out.")] = False,
    overwrite: o.Overwrite = False,
    json: o.Json = None,
) -> None:
    """Record drafted tokens and whether the target accepts them: the rows that a classifier learns from.

    The target generates a text for each prompt, and the draft proposes full trees along it.
    Every drafted token becomes a row. Without --out, an interrupted harvest goes on by itself.
    With --overwrite the old harvest stays until the new one, which --resume continues, is complete.
    Several processes, each with its --shard, write what --merge then makes one harvest.
    """
    if merge is not None:
        _merge(merge, out, overwrite, json, context)
        return
    from c2t.harvest import harvest as harvesting  # noqa: PLC0415 - needs an extra
    from c2t.records.reader import is_complete, unfinished  # noqa: PLC0415 - needs an extra

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
    terminal.refuse(context, "ray", ("shard", "texts"), "--ray deals the prompts to its workers itself: leave --{} out")
    terminal.refuse(context, "texts", ("prompts", "limit"), "--texts brings its prompts along: leave --{} out")
    shared.read(prompts or [])  # what is wrong with them is said before models are loaded
    make = partial(shared.load, models)
    with shared.pool(ray, workers, make, models.device) as pool:
        loaded = None if pool else make()
        name = pool.call(attrgetter("name")) if pool else loaded.name
        number, variables = (WHOLE, "") if pool else _shard(shard)
        suffix = (f"-{policy}" if policy != HARVEST.policy else "") + ("-shards" if number != WHOLE else "")
        whole = out or checkpoints.harvest_of(name + suffix)
        folder = number.folder(whole)
        if variables:
            of_whole = f"this process harvests shard {number.index} of {number.count} (by {variables})"
            terminal.say(f"{of_whole}; --shard 0/1 harvests everything", error=True)
        how = {"resume": resume or (out is None and not overwrite), "overwrite": overwrite}
        judged = None
        if texts is None:
            chosen = spread(shared.read(prompts or default_prompts(name, "harvest")), limit)
        else:
            judged = _judged(texts, loaded, settings, number)
            chosen = [text.prompt for text in judged.texts]
        standing = unfinished(folder) or folder
        before = {*standing.iterdir()} if how["resume"] and is_complete(standing) else None
        with progress_bar("harvest", "texts") as report:
            if pool:
                done = harvesting.harvest_by(pool, chosen, folder, settings, progress=report, **how)
            else:
                more = {"shard": number, "texts": judged, "progress": report}
                done = harvesting.harvest(loaded, chosen, folder, settings, **more, **how)
    if before == {*folder.iterdir()}:
        terminal.say(f"{folder} is complete already; --overwrite makes it again.")
    _harvested(done, json)
    if number != WHOLE:
        terminal.say(f"When all {number.count} shards are there: c2t harvest --merge {whole}")


def _shard(given: str | None) -> tuple[ShardNumber, str]:
    """Return the shard of this process, and the names of the variables that say so."""
    return ShardNumber.of_process() if given is None else (ShardNumber.parse(given), "")


def _judged(file: Path, pair: Pair, settings: HarvestSettings, number: ShardNumber) -> JudgedTexts:
    """Read an engine's texts, let the target judge them, and print the counts."""
    with progress_bar("read", "groups") as report:
        judged = judge(pair, read_texts(file, pair), settings, number, report)
    terminal.say(str(judged), error=True)
    return judged


def _merge(shards: Path, out: Path | None, overwrite: bool, json: str | None, context: terminal.Context) -> None:
    """Merge shards into one harvest. InputError for options that repeat what the shards say."""
    from c2t.harvest.merge import merge, read_parts  # noqa: PLC0415 - needs an extra

    if more := [name for name in terminal.given(context) if name not in ("merge", "out", "overwrite", "json")]:
        raise InputError(f"--merge takes everything from the shards: leave --{more[0].replace('_', '-')} out")
    folder = out
    if folder is None:
        facts = read_parts(shards)[0].harvest.provenance
        policy = "-mcsd+" * (facts.get("policy") == "mcsd+")
        folder = checkpoints.harvest_of(checkpoints.check_name(facts["pair"], str(shards)) + policy)
    with progress_bar("merge", "texts") as report:
        done = merge(shards, folder, overwrite=overwrite, progress=report)
    _harvested(done, json)


def _harvested(done: Harvest, json: str | None) -> None:
    shared.show(information.folder(done.folder))
    figures = {name: getattr(done, name) for name in COUNTS} | {"texts": len(done.prompts)}
    terminal.result(json, "harvest", figures, done.provenance)


def train(
    data: o.Data = None,
    out: Annotated[Path | None, o.folder_out("checkpoints/local/PAIR/classifier; of another model PAIR-MODEL")] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Model to train: c2t, the paper's classifier; c2t-conditional, for tokens after accepted ones; "
            "mcsd-hidden or mcsd-topk, the decision models of the policy mcsd+.",
            metavar="NAME",
        ),
    ] = "c2t",
    hidden: Annotated[int, typer.Option(help="Hidden units of the network.")] = TRAIN.hidden,
    features: Annotated[
        str | None,
        typer.Option(help="Inputs of the network.", metavar="NAMES", show_default=",".join(TRAIN.features)),
    ] = None,
    epochs: o.Epochs = TRAIN.epochs,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of Adam.", show_default="1e-3; for c2t-conditional 3e-3"),
    ] = None,
    batch_size: o.BatchSize = TRAIN.batch_size,
    negatives: Annotated[
        int | None,
        typer.Option(
            help="Rejected tokens for each accepted one; 0: all.",
            show_default="1 for c2t, 0 for other models",
        ),
    ] = None,
    seed: o.TrainSeed = TRAIN.seed,
    logger: Logger = LOGGERS[0],
    overwrite: o.Overwrite = False,
    json: o.Json = None,
) -> None:
    """Train a classifier on the rows of harvests; no language model is loaded.

    A classifier that is there already stays; --overwrite replaces it.
    """
    from c2t.training import fit as training  # noqa: PLC0415 - needs an extra

    model = OLD_MODELS.get(model, model)
    if model not in MODELS:
        raise InputError(f"no model is called {model!r}; known: {', '.join(MODELS)}")
    names = None if features is None else tuple(name.strip() for name in features.split(","))
    given = {"features": names, "lr": lr, "negatives": negatives}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = replace(MODELS[model], hidden=hidden, epochs=epochs, batch_size=batch_size, seed=seed, **chosen)
    folders = harvests(data, checkpoints.DEFAULT_PAIR + ("-mcsd+" if model.startswith("mcsd") else ""))
    folder = out or _local(folders, "" if model == "c2t" else f"-{model}")
    with progress_bar("train", "steps") as report:
        result = training.train(folders, folder, settings, logger, overwrite, progress=report)
    _trained("train", result, settings, folders, json)


def finetune(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="Classifier to start from: a folder, a Hub id or the name of a pair.",
            parser=o.a_name,
            metavar="PLACE",
        ),
    ] = checkpoints.DEFAULT_PAIR,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Harvests to learn from: folders, or names of pairs.",
            show_default=f"{checkpoints.DEFAULT_PAIR}, else the one of --from",
            parser=o.a_name,
            metavar="DATA",
        ),
    ] = None,
    out: Annotated[Path | None, o.folder_out("checkpoints/local/PAIR-finetuned/classifier")] = None,
    fraction: o.Fraction = FINETUNE.fraction,
    epochs: o.Epochs = FINETUNE.epochs,
    lr: o.LearningRate = FINETUNE.lr,
    batch_size: o.BatchSize = FINETUNE.batch_size,
    seed: o.TrainSeed = FINETUNE.seed,
    logger: Logger = LOGGERS[0],
    overwrite: o.Overwrite = False,
    json: o.Json = None,
) -> None:
    """Adapt a trained classifier to the rows of other harvests.

    Without --out, the result is called PAIR-finetuned.
    A classifier that is there already stays; --overwrite replaces it.
    """
    from c2t.training import fit as training  # noqa: PLC0415 - needs an extra

    classifier = TreeClassifier.from_pretrained(source)
    settings = TrainSettings(fraction=fraction, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)
    folders = harvests(data, checkpoints.DEFAULT_PAIR, source)
    folder = out or _local(folders, "-finetuned")
    with progress_bar("finetune", "steps") as report:
        result = training.finetune(folders, classifier, folder, settings, logger, overwrite, progress=report)
    _trained("finetune", result, settings, folders, json)


def _local(harvests: list[Path], suffix: str = "") -> Path:
    from c2t.records.reader import describe  # noqa: PLC0415 - needs an extra

    name = checkpoints.check_name(describe(harvests[0]).provenance["pair"], str(harvests[0] / MANIFEST))
    return checkpoints.local_of(name + suffix, checkpoints.CLASSIFIER)


def harvests(data: list[str] | None, *defaults: str) -> list[Path]:
    """Return folders of harvests; a name stands for the default folder of that pair's harvest."""
    if data:
        return [checkpoints.harvest_of(p) if checkpoints.is_name(p) and not Path(p).exists() else Path(p) for p in data]
    folders = [checkpoints.harvest_of(name) for name in defaults if checkpoints.is_name(name)]
    return [next((folder for folder in folders if folder.is_dir()), folders[0])]


def _trained(command: str, result: Any, settings: TrainSettings, folders: list[Path], json: str | None) -> None:
    terminal.table(*reports.training_table(result))
    terminal.say(reports.training_remarks(result))
    terminal.result(json, command, reports.training_figures(result), asdict(settings) | {"data": folders})
