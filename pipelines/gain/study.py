"""Study of when a learned tree gains: gamma of scores over that of the best training-free tree at equal tau, by draft,
text temperature and domain, with and without the text's n-grams in the draft (`c2t.models.ngrams`). Trees are cut out
of harvested full ones (`pipelines.gain.subtrees`); a learned score is always tested on domains that it did not learn
from.

    python -m pipelines.gain [--limit N] [--drafts a,b] [--temperatures a,b] [--grid] [--every] [--fresh] [--mixed]
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from c2t import figures
from c2t.errors import InputError
from c2t.harvest.harvest import HarvestSettings
from c2t.models.pairs import NGRAMS, drafts_of, load_pair
from c2t.prompts import Prompt, default_prompts, read_prompts, spread
from c2t.records.reader import describe, read_columns
from c2t.storage import paths as checkpoints
from c2t.storage.results import result_line
from c2t.study.interval import bootstrap
from c2t.study.pareto import gamma_at
from c2t.study.points import Point
from pipelines import options, terminal
from pipelines.gain.context import read_texts, with_context
from pipelines.gain.full_trees import HARVESTS, Build, Condition, harvested
from pipelines.gain.subtrees import Nodes, cuts, read_nodes
from pipelines.gain.variants import RIVALS, UNTRAINED, VARIANTS, scores
from pipelines.papers import drawing

RESULTS = checkpoints.root() / "data" / "results" / "gain.jsonl"
TAUS = (1.5, 2.0, 2.5, 3.0)
MAIN = (
    "paper's network",
    "network, log P",
    "boosted trees, all 11",
    "conditional: network, own 5",  # with the inputs of `c2t train --model c2t-conditional`
)
WITH_NGRAMS = (*MAIN, "conditional: network, own 8, copies", "conditional: boosted trees, own 8, copies")
PLAIN, BOTH = "the best untrained tree", "the best untrained tree, n-grams known"
# Rivals of a score: at each tau the best tree ranked by the draft alone, or the best one ranked by the draft alone or
# with n-grams.
BARS = {PLAIN: tuple(RIVALS), BOTH: (*RIVALS, *(name + NGRAMS for name in RIVALS))}
ORACLE, EVERYTHING = "oracle", "all prompts"
PAPERS = "paper's network"
DRAWN = {
    PAPERS: figures.COLOURS[0],
    "boosted trees, all 11": figures.COLOURS[1],
    "threshold on P" + NGRAMS: figures.COLOURS[2],
    "conditional: network, own 5" + NGRAMS: figures.COLOURS[3],
}
DRAWN_TAUS = (1.5, 2.0)


class Row(NamedTuple):
    """Ratio of a score's gamma to that of the best rival at one tau, with a 95 % interval by prompt (None where too few
    resamples reach the tau). prompts: the part of the prompts."""

    prompts: str
    score: str
    rivals: str
    tau: float
    ratio: float
    low: float | None
    high: float | None


def conditions(drafts: Sequence[str], temperatures: Sequence[float], grid: bool) -> list[Condition]:
    """Return all drafts at the first temperature and all temperatures with the first draft; grid: every draft at every
    temperature."""
    return [
        Condition(draft, temperature)
        for temperature in temperatures
        for draft in drafts
        if grid or draft == drafts[0] or temperature == temperatures[0]
    ]


def parts(nodes: Nodes, entries: Sequence[dict[str, Any]]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the prompts as a whole, by file and by category: masks over the prompts that have trees."""
    entries = [entries[prompt] for prompt in np.unique(nodes.prompt)]
    yield EVERYTHING, np.ones(len(entries), bool)
    for key in ("file", "category"):
        values = np.array([entry[key].removesuffix(".jsonl") for entry in entries])
        yield from ((str(value), values == value) for value in np.unique(values))


def ratios(
    nodes: Nodes, entries: Sequence[dict[str, Any]], found: dict[str, list[Point]], bars: Sequence[str]
) -> Iterator[Row]:
    """Yield the ratio of every score to these bars, on all prompts; on parts of the prompts only the ratios that are
    drawn."""
    points = [point for family in found.values() for point in family]
    counts = np.array([getattr(point, name) for name in ("rounds", "accepted", "verified") for point in points], float)
    names = [(bar, name, tau) for bar in bars for name in found for tau in TAUS]

    def over_bars(sums: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "F R"]:
        rounds, accepted, verified = sums.reshape(3, len(points), -1).transpose(0, 2, 1)
        places = np.split(np.arange(len(points)), np.cumsum([len(family) for family in found.values()])[:-1])
        own = {
            name: gamma_at((accepted / rounds)[:, place], (verified / rounds)[:, place], TAUS)
            for name, place in zip(found, places, strict=True)
        }
        # On each family's own front: nothing can be read between points of different families.
        best = {bar: np.fmin.reduce([own[name] for name in BARS[bar]]) for bar in bars}
        return np.concatenate([(own[name] / best[bar]).T for bar in bars for name in found])

    for part, kept in parts(nodes, entries):
        for (bar, name, tau), ratio in zip(names, bootstrap(counts[:, kept], over_bars), strict=True):
            drawn = bar == PLAIN and tau in DRAWN_TAUS
            if ratio.estimate is not None and (drawn or part == EVERYTHING):
                yield Row(part, name, bar, tau, *(value if value is None else round(value, 4) for value in ratio))


def judged(
    condition: Condition, prompts: Sequence[Prompt], settings: HarvestSettings, build: Path, every: bool, mixed: bool
) -> tuple[int, list[Row]]:
    """Return the number of trees of the draft alone, and all scores on its harvest and on that with n-grams. mixed:
    scores by models that saw other prompts of the same domain."""
    with torch.no_grad():
        texts, laws = read_texts(load_pair("tiny", dtype=torch.float32), prompts, settings)
    found: dict[str, list[Point]] = {}
    alone = harvested(condition, prompts, settings, build)
    for ngrams, names in (
        ("", (*UNTRAINED, *VARIANTS) if every else (*RIVALS, *MAIN)),
        (NGRAMS, (*RIVALS, *WITH_NGRAMS)),
    ):
        folder = harvested(condition._replace(draft=condition.draft + ngrams), prompts, settings, build)
        nodes = read_nodes(folder)
        if mixed:
            folds = np.random.default_rng(0).integers(len(nodes.files), size=len(prompts))
            nodes = nodes._replace(fold=folds[nodes.prompt])
        for name, score in scores(with_context(nodes, texts, laws), names):
            found[name + ngrams] = cuts(nodes, name + ngrams, score)
    return describe(alone).trees, list(ratios(nodes, describe(alone).prompts, found, tuple(BARS)))


def limit_of(folder: Path) -> list[Row]:
    """Return the oracle's ratios on a harvest with the target's probabilities."""
    nodes = read_nodes(folder)
    found = {name: cuts(nodes, name, score) for name, score in scores(nodes, RIVALS)}
    found[ORACLE] = cuts(nodes, ORACLE, read_columns(folder, ["target_prob"])["target_prob"])
    rows = ratios(nodes, describe(folder).prompts, found, [PLAIN])
    return [row for row in rows if row.score == ORACLE]


def show(title: str, rows: Sequence[Row]) -> None:
    """Print a table for all prompts over each bar."""
    for bar in BARS:
        lines: dict[str, dict[float, str]] = {}
        for row in rows:
            if (row.prompts, row.rivals) == (EVERYTHING, bar):
                interval = "" if row.low is None else f" ({row.low:.2f}-{row.high:.2f})"
                lines.setdefault(row.score, {})[row.tau] = f"{row.ratio:.2f}{interval}"
        if lines:
            table = [[name, *(found.get(tau) for tau in TAUS)] for name, found in lines.items()]
            terminal.table(f"{title}: gamma over that of {bar}", ["score", *(f"tau {tau:g}" for tau in TAUS)], table)


def read(path: Path) -> dict[str, list[Row]]:
    """Return the rows of each condition in a file."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        Condition(run["draft"], run["temperature"]).title: [Row(*row) for row in figures["rows"]]
        for run, figures in ((line["configuration"], line["figures"]) for line in lines)
    }


def picture(found: dict[str, list[Row]]) -> Figure:
    """Return a figure of ratios with intervals: all conditions, and the first one's parts of the prompts."""
    first = next(iter(found))
    places = [(title, EVERYTHING) for title in found]
    places += [(first, part) for part in dict.fromkeys(row.prompts for row in found[first]) if part != EVERYTHING]
    figure, panels = drawing.panels(len(DRAWN_TAUS))
    figure.set_size_inches(10, 1.5 + 0.45 * len(places))
    for panel, tau in zip(panels, DRAWN_TAUS, strict=True):
        _panel(panel, found, places, tau)
    labels = [title if part == EVERYTHING else f"{title}: {part}" for title, part in places]
    panels[0].set_yticks(range(len(places)), labels)
    panels[1].set_yticks(range(len(places)), [])
    handles = [drawing.point(colour, marker) for colour, marker in zip(DRAWN.values(), figures.MARKERS, strict=False)]
    figure.legend(handles=handles, labels=list(DRAWN), loc="outside lower center", ncols=len(DRAWN), frameon=False)
    return figure


def _take_away(found: dict[str, list[Row]], place: tuple[str, str], tau: float) -> str:
    """Return what the first line of a panel says of the paper's classifier."""
    title, part = place
    row = next((row for row in found[title] if row[:4] == (part, PAPERS, PLAIN, tau) and row.low is not None), None)
    if row is None:
        return f"tau {tau:g}"
    said = f"{row.ratio:.2f} ({row.low:.2f}-{row.high:.2f})"
    return f"At tau {tau:g} the {PAPERS} verifies\n{said} times the tokens ({title})"


def _panel(panel: Axes, found: dict[str, list[Row]], places: Sequence[tuple[str, str]], tau: float) -> None:
    for number, (name, colour) in enumerate(DRAWN.items()):
        for place, (title, part) in enumerate(places):
            for row in found[title]:
                if row[:4] != (part, name, PLAIN, tau) or row.low is None:
                    continue
                height = place + 0.18 * (number - (len(DRAWN) - 1) / 2)
                panel.plot([row.low, row.high], [height] * 2, color=colour, linewidth=1.5)
                panel.plot(row.ratio, height, figures.MARKERS[number], color=colour, markersize=5)
    panel.axvline(1, color="0.4", linewidth=1)
    panel.set_title(_take_away(found, places[0], tau), loc="left", fontsize="medium")
    panel.set(xlabel="gamma over the best untrained tree's", ylim=(len(places) - 0.5, -0.5))


def main(
    context: typer.Context,
    drafts: Annotated[
        str | None, typer.Option(help="The first one meets all temperatures.", show_default="those of tiny")
    ] = None,
    temperatures: Annotated[str, typer.Option(help="Of the text; the first one meets all drafts.")] = "0.4,0,0.8",
    grid: Annotated[bool, typer.Option(help="Every draft at every temperature.")] = False,
    every: Annotated[bool, typer.Option(help="Every score that was tried instead of the main ones.")] = False,
    limit: options.Texts = 120,
    max_new_tokens: options.TextTokens = 64,
    fresh: Annotated[bool, typer.Option(help="The bench prompts: nothing was chosen on them.")] = False,
    mixed: Annotated[bool, typer.Option(help="Learn from other prompts of the same domains.")] = False,
    oracle: Annotated[int, typer.Option(help="Prompts of the first condition for the limit; 0: none.")] = 24,
    build: Build = HARVESTS,
    out: Annotated[Path, typer.Option(help="JSON lines; the figure lies beside them.")] = RESULTS,
) -> None:
    """Compare learned scores of nodes with the best training-free tree, by draft, temperature and domain."""
    if context.invoked_subcommand:
        return
    there = [*drafts_of("tiny")]
    names = drafts.split(",") if drafts else there
    if absent := [name for name in names if name not in there]:  # before hours of the others
        raise InputError(f"--drafts: tiny has no {', '.join(absent)}; it has {', '.join(there)}")
    purpose = "bench" if fresh else "harvest"
    prompts = spread([p for path in default_prompts("tiny", purpose) for p in read_prompts(path)], limit)
    build = build / purpose
    chosen = conditions(names, [float(value) for value in temperatures.split(",")], grid)
    lines, found = [], {}
    for condition in chosen:
        settings = HarvestSettings(max_new_tokens=max_new_tokens, temperature=condition.temperature)
        trees, rows = judged(condition, prompts, settings, build, every, mixed)
        if oracle and condition == chosen[0]:
            few = prompts[:oracle]
            rows += limit_of(harvested(condition, few, replace(settings, columns=["target_prob"]), build))
        if every or fresh:  # no figure shows their parts, and the table of every score no other bar
            rows = [row for row in rows if row.prompts == EVERYTHING and (fresh or row.rivals == PLAIN)]
        else:
            rows = [row for row in rows if row.prompts == EVERYTHING or (row.rivals == PLAIN and row.score in DRAWN)]
        show(condition.title, rows)
        found[condition.title] = rows
        run = {"purpose": purpose, "mixed": mixed, "prompts": len(prompts), "oracle_prompts": oracle}
        figures = {"trees": trees, "rows": rows}
        lines.append(result_line("gain", figures, {"draft": condition.draft, **run, **asdict(settings)}))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    drawing.save(picture(found), out.with_suffix(".png"))
