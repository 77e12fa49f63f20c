"""The command line of a script that reproduces a table or a figure: the options that every study has, and its own."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import typer

from c2t.cli import options as o
from pipelines.papers import study as paper
from pipelines.papers.study import Settings

# Name -> what typer makes an option of; the settings of a study, in the order in which --help lists them, ...
STUDY = {
    "pair": paper.PairName,
    "draft": o.Draft,
    "temperature": o.Temperature,
    "limit": o.Limit,
    "max_new_tokens": o.MaxNewTokens,
    "prompts": o.Prompts,
    "harvest_prompts": paper.HarvestPrompts,
    "harvest_limit": paper.HarvestLimit,
    "harvest_tokens": paper.HarvestTokens,
    "training": paper.Training,
    "seed": o.Seed,
}
# ... and where it runs and what becomes of it.
MACHINE = {"device": o.Device, "dtype": o.Dtype, "json": o.Json}
FILES = ("prompts", "harvest_prompts")  # which may be given several times


def run(
    work: Callable[..., object],
    about: str | None,
    own: Mapping[str, tuple[Any, Any]] = MappingProxyType({}),
    **defaults: Any,
) -> None:
    """Call `work` with what the command line says. about: the text of --help. own: further options, as annotation and
    default. defaults: of the study's settings, where they are not those of `Settings`."""
    settings = Settings(**defaults)
    known = {name: (kind, None if name in FILES else getattr(settings, name)) for name, kind in STUDY.items()}
    known |= dict(own) | {name: (kind, None) for name, kind in MACHINE.items()}

    def main(**chosen: Any) -> None:
        work(**chosen | {name: tuple(chosen[name] or ()) for name in FILES})

    main.__doc__ = about
    main.__annotations__ = {name: kind for name, (kind, _) in known.items()}
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    main.__signature__ = inspect.Signature(
        [inspect.Parameter(name, either, default=default, annotation=kind) for name, (kind, default) in known.items()]
    )
    typer.run(main)
