"""The command that trains a draft head for a target: draft train."""

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from c2t.cli import options as o
from c2t.cli import shared, terminal
from c2t.cli.help import Command, CommandGroup
from c2t.costs.policy_text import policy_for
from c2t.errors import InputError, one_line
from c2t.models.drafts.uniform import LOOKUP
from c2t.models.loading.hub import fetch
from c2t.models.loading.load import Pair
from c2t.models.loading.own_model import pair_and_target
from c2t.models.loading.trained import FOLDER, find_trained, in_cache, update_provenance
from c2t.output.progress import progress_bar
from c2t.policies.spec import describe, split
from c2t.replay.prompts import Prompt
from c2t.storage import paths
from c2t.study import autotune as tuning

if TYPE_CHECKING:  # they take a second, or need an extra
    from c2t.drafting.train import DraftSettings, DraftTraining
    from c2t.training.result import Result

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train a draft head for a model of your own: c2t draft train.",
)
TRIED = ("chain", "threshold")  # policies: with all that tune tries, each would decode one short text in the time
JUDGING = 16  # questions that trees are tried on; the classifier learns from the others
TUNING = 1 / 2  # share of the last minutes that stays for it


@app.callback()
def draft() -> None: ...


@app.command("train", cls=Command)
@o.with_models
def train(
    models: o.Models,
    prompts: o.Prompts = None,
    data: o.Rows = None,
    minutes: Annotated[float, typer.Option(help="Train for so long, earlier runs in the same folder included.")] = 30.0,
    kind: Annotated[
        Literal["eagle", "eagle3", "medusa", "dspark"],
        typer.Option(help="Kind of the head: eagle, eagle3, medusa or dspark (blocks)."),
    ] = "eagle",
    begin: Annotated[
        str | None,
        typer.Option(
            help="Begin from this head: a folder, a Hub id or a pair's name, as of the model yours was tuned from.",
            show_default="a new one",
            parser=o.a_name,
            metavar="PLACE",
        ),
    ] = None,
    out: Annotated[Path | None, o.folder_out("the folder c2t in the model's own, else one in the cache")] = None,
    export: Annotated[
        Literal["speculators"] | None,
        typer.Option(help="Write an eagle3 head in this layout, too, which vLLM reads.", show_default="none"),
    ] = None,
    json: o.Json = None,
) -> None:
    """Train a draft head for a model, on texts that the model generates itself, and a classifier for it.

    Every command finds the head by the weights of its target: c2t generate --model X needs no --draft.
    There is a usable head after the first minutes, and Ctrl-C keeps the best so far; the same command goes on.
    Questions are the prompts given, else turns that the model invents and functions out of Python's docstrings.
    """
    from c2t.drafting import questions  # noqa: PLC0415 - it takes a second
    from c2t.drafting import train as training  # noqa: PLC0415
    from c2t.drafting.export import export_speculators  # noqa: PLC0415

    if models.draft is not None:
        raise InputError(f"--draft {models.draft}: a head begins from nothing, or from --begin; leave --draft out")
    if export and kind != "eagle3":
        raise InputError(f"--export {export} is for EAGLE-3 heads: give --kind eagle3, or leave it out")
    if data and prompts:
        raise InputError("--prompts are questions of texts that the model generates: leave them out with --data-path")
    settings = training.DraftSettings(kind=kind, minutes=minutes)
    pair, target = pair_and_target(models.pair, models.target)
    turns = [prompt.turns[0] for prompt in shared.read(prompts or [])]
    asked = models._replace(pair=pair, target=target)
    loaded = shared.load(asked._replace(draft=LOOKUP))
    folder = out or default_out(loaded.sources["target"][0])
    with progress_bar("draft train", "seconds") as report:
        done = training.train(loaded, folder, questions.sources(loaded, turns), settings, begin, report, data)
    if export:
        terminal.say(f"for vLLM: {export_speculators(done.head, loaded.target, loaded.sources['target'][0])}")
    source, arithmetic = loaded.sources["target"], loaded.arithmetic
    del loaded  # a large target may fit into memory only once
    with training.noted(done.head):
        both = shared.load(asked._replace(draft=str(done.head)))
        network = classifier_for(both, done, settings)
        choice = tuned(both, done, settings, network)
    terminal.say(
        f"{done.head}: agrees with the target on {done.progress.agreement:.0%} of the tokens of texts that it has not "
        f"learned from ({done.written:,} tokens {'read' if data else 'generated'}, {done.progress.positions:,} "
        "positions learned)"
    )
    if network:
        terminal.say(f"{network.out}: its classifier, with {network.metrics.recall:.0%} recall at threshold one half")
    terminal.say(f"the fastest here on such texts: {choice.summary}")
    default = find_trained(fetch(source[0]))  # a head of another kind comes after an EAGLE-1 head
    by_itself = default is not None and default.resolve() == done.head.resolve()
    words = shared.typed(models if by_itself else models._replace(draft=str(done.head)))
    terminal.say(f"use it with: c2t generate {words}TEXT")
    figures = {
        "head": str(done.head),
        "classifier": network and str(network.out),
        "written": done.written,
        **asdict(done.progress),
        "tuned": choice.summary,
    }
    about = {"target": source, "begin": begin, **asdict(settings), "dtype": arithmetic}
    terminal.result(json, "draft train", figures, about)


def default_out(source: str) -> Path:
    """Return the folder of a target's heads: c2t in its own folder, or one in the cache, as for a Hub id."""
    target = fetch(source)
    comes_along = target.is_relative_to(paths.shipped()) or target.is_relative_to(paths.cache())
    comes_along |= not Path(source).is_dir()
    return in_cache(target) if comes_along or not os.access(target, os.W_OK) else target / FOLDER


def validation(done: "DraftTraining") -> list[Prompt]:
    """Return the questions that the head has not learned from."""
    return [Prompt(number, "", [turn], "validation") for number, turn in enumerate(done.validation)]


def classifier_for(pair: Pair, done: "DraftTraining", settings: "DraftSettings") -> "Result | None":
    """Train a classifier for the head on questions that trees are not tried on; where that cannot be, say why and
    return None."""
    try:
        from c2t.study.head_classifier import train_classifier  # noqa: PLC0415 - needs an extra

        with progress_bar("classifier", "texts") as report:
            until = done.end - TUNING * settings.last_minutes * 60
            return train_classifier(pair, validation(done)[JUDGING:], until, progress=report)
    except (InputError, ModuleNotFoundError) as error:
        terminal.say(f"no classifier was trained: {one_line(error)}", error=True)
        return None


def tuned(pair: Pair, done: "DraftTraining", settings: "DraftSettings", network: "Result | None") -> tuning.Tuning:
    """Find the fastest policy for the head on questions that neither it nor its classifier has learned from, and name
    it in the folder's provenance.json."""
    specs = [spec for spec in split(tuning.DEFAULT_CANDIDATES) if spec.startswith(TRIED)]
    if network:
        specs += [spec for spec in split(tuning.DEFAULT_CANDIDATES) if spec.startswith("c2t:") and "levels" in spec]
    minutes = max(TUNING * settings.last_minutes, (done.end - time.monotonic()) / 60)
    prompts = validation(done)[:JUDGING]
    search = tuning.TuneSettings(ngrams=True, minutes=minutes, limit=len(prompts))
    candidates = [policy_for(pair, spec) for spec in specs]
    with progress_bar("tune", "texts") as report:
        result = tuning.tune(pair, candidates, prompts, search, progress=report)
    update_provenance(done.head.parent, {"policy": describe(result.best.policy), "ngrams": result.best.ngrams})
    return result
