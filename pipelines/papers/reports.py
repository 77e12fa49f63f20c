"""All reports by name, and how they are made: one after the other, or each by one of Ray's actors."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from c2t.errors import InputError
from pipelines.papers import (
    calibration,
    chains,
    domains,
    dyspec,
    eagle2,
    entropytree,
    features,
    mcsd_plus,
    outputs,
    timing,
    transfer,
    tree_blocks,
    trees,
)
from pipelines.papers.report import Made, Reproduction

TOPICS = (
    features,
    transfer,
    chains,
    trees,
    calibration,
    domains,
    timing,
    outputs,
    eagle2,
    entropytree,
    mcsd_plus,
    dyspec,
    tree_blocks,
)
REPORTS: dict[str, Reproduction] = {name: report for topic in TOPICS for name, report in topic.REPORTS.items()}


def known(name: str) -> str:
    """Return the name of a report; InputError for an unknown one."""
    short = name.removeprefix("c2t-")
    if short not in REPORTS:
        raise InputError(f"no report is called {name!r}; known: {', '.join(REPORTS)}")
    return short


def make(names: Sequence[str], given: Mapping[str, Any]) -> Iterator[Made]:
    """Yield these reports, each made with its own defaults, changed by `given`."""
    for name in names:
        yield REPORTS[name].make(given)


def make_by_actors(names: Sequence[str], given: Mapping[str, Any], address: str, workers: int) -> Iterator[Made]:
    """Yield the same, each report made by one of `workers` actors of the Ray cluster at this address."""
    from c2t.ray_pool import RayPool  # noqa: PLC0415 - needs an extra

    device = given.get("device")
    gpus = None if device is None else int(device.startswith("cuda"))
    with RayPool(_nothing, address, workers, gpus) as actors:
        for made in actors.map(partial(_made, given=dict(given)), names):
            yield pickle.loads(made)  # noqa: S301 - what an actor of this very pool has made


def _nothing() -> None:
    """Return what an actor holds: reports load their own pairs."""


def _made(held: None, name: str, given: dict[str, Any]) -> bytes:
    """Return a report as bytes: arrays that Ray itself hands over are read-only, and a figure must be drawn."""
    from ray import cloudpickle  # noqa: PLC0415 - needs an extra

    return cloudpickle.dumps(REPORTS[name].make(given))
