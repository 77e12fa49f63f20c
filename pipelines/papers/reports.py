"""All reports by name, and how they are made: one after the other, or each by one of Ray's actors."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from c2t.errors import InputError
from c2t.storage import paths as checkpoints
from pipelines.papers import calibration, chains, domains, eagle2, features, outputs, timing, transfer, trees
from pipelines.papers.report import Made, Reproduction

TOPICS = (features, transfer, chains, trees, calibration, domains, timing, outputs, eagle2)
ALL = "all"
# Of `all`, the fastest first.
ORDER = (
    *("eagle2-figure6", "figure2", "figure9", "figure10", "table3", "eagle2-table3", "table4", "table1", "table7"),
    *("table6", "figure4", "figure6", "table5", "figure8", "figure7", "table2", "figure11", "figure5"),
)
# Settings of `all` for a pair with heads but no draft LM.
OF_HEADS: dict[str, dict[str, Any]] = {
    "table7": {"draft": "medusa+fit"},
    "figure7": {"same_draft": "medusa+fit"},
    "table2": {"other": "tiny"},
}
REPORTS: dict[str, Reproduction] = {name: report for topic in TOPICS for name, report in topic.REPORTS.items()}

Done = Mapping[str, Sequence[Mapping[str, Any]]]  # name -> configurations that it is made of already


def chosen(names: Sequence[str], pair: str) -> dict[str, dict[str, Any]]:
    """Return name -> further settings of these reports; `all` stands for all that the pair can be given. InputError for
    an unknown name."""
    if list(names) != [ALL]:
        if unknown := [name for name in names if name not in REPORTS]:
            raise InputError(f"no report is called {unknown[0]!r}; known: {', '.join(REPORTS)}")
        return {name: {} for name in names}
    if checkpoints.find(pair, "draft_lm"):
        return {name: {} for name in ORDER}
    further = OF_HEADS | {"figure7": {"same": pair, **OF_HEADS["figure7"]}}
    return {name: further.get(name, {}) for name in ORDER}


def make(names: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any], done: Done) -> Iterator[Made | None]:
    """Yield these reports, each made with its own defaults, changed by `given` and its further settings; None for one
    that is done."""
    for name, further in names.items():
        yield REPORTS[name].make({**further, **given}, done.get(name, ()))


def make_by_actors(
    names: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any], done: Done, address: str, workers: int
) -> Iterator[Made | None]:
    """Yield the same, each report made by one of `workers` actors of the Ray cluster at this address."""
    from c2t.harvest.ray_pool import RayPool  # noqa: PLC0415 - needs an extra

    device = given.get("device")
    gpus = None if device is None else int(device.startswith("cuda"))
    with RayPool(_nothing, address, workers, gpus) as actors:
        yield from actors.map(partial(_made, given=dict(given), done=dict(done)), list(names.items()))


def _nothing() -> None:
    """Return what an actor holds: reports load their own pairs."""


def _made(held: None, item: tuple[str, dict[str, Any]], given: dict[str, Any], done: Done) -> Made | None:
    """Return a report, made by an actor."""
    name, further = item
    return REPORTS[name].make({**further, **given}, done.get(name, ()))
