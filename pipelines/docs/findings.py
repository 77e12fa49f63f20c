"""Tables and numbers of docs/findings.md: verified tokens of one tree over another's, at equal acceptance length."""

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from pipelines.docs import reliability
from pipelines.docs.cells import LENGTHS, extent, interval, lengths, table
from pipelines.docs.result_lines import BY_PROMPT, Line, lines, size, source

Ratio = list[float | None]  # with the ends of its interval

PAPER, CONDITIONAL, THRESHOLD = "paper's network", "conditional network", "threshold on P"
EAGLE2, OWN = "EAGLE-2, levels searched", "conditional network, own 8"
COUNTING = f"{OWN} and the text's counts"  # it also reads how often the text went on so
SHOWN = ("eagle", "eagle3", "medusa+fit", "block", "lookup")
OVER_THRESHOLD, OVER_BEST = 4, 5  # columns of a row of `gain real-pair`: over a threshold, over the best untrained tree
BEST_UNTRAINED = "the best untrained tree"  # rival of `gain`
RIGHT = "threshold on P, logits as they were"  # as a temperature that is known to be right makes them
EVERYTHING = "all prompts"


class Comparison(NamedTuple):
    """A line of `gain real-pair` at one tau, and its rows there by the name of the tree."""

    line: Line
    tau: float
    rows: dict[str, list[Any]]

    @property
    def title(self) -> str:
        run = self.line["configuration"]
        return f"`{run['draft']}`, T = {run['temperature']:g}"

    def ratio(self, tree: str, over: int = OVER_BEST) -> Ratio | None:
        """Return a tree's tokens over another's, with the interval."""
        return self.rows[tree][over] if tree in self.rows else None


def comparisons(file: str, tree: str) -> list[Comparison]:
    """Return the lines of a file, each at the largest tau where the tree's ratio has an interval; a later line of a
    draft and temperature stands for an earlier one."""
    latest = {(line["configuration"]["draft"], line["configuration"]["temperature"]): line for line in lines(file)}
    compared = []
    for line in latest.values():
        rows: dict[float, dict[str, list[Any]]] = {}
        for row in line["figures"]["rows"]:
            rows.setdefault(row[2], {})[row[0]] = row
        tau = max(tau for tau, here in rows.items() if tree in here and here[tree][OVER_BEST][1] is not None)
        compared.append(Comparison(line, tau, rows[tau]))
    return compared


@cache
def calibrated_drafts() -> list[Comparison]:
    """Return the drafts of smollm2 as they are."""
    compared = [(run.line["configuration"]["draft"], run) for run in comparisons("gain-real.jsonl", PAPER)]
    return [comparison for shown in SHOWN for draft, comparison in compared if draft == shown]


def confidence(comparison: Comparison, depth: int = 2) -> str:
    """Return the mean probability of the most probable token of a depth, and the share of it that is accepted."""
    rows = (reliability.Reliability(*row) for row in comparison.line["figures"]["reliability"])
    row = next(row for row in rows if (row.data_set, row.depth) == (reliability.EVERYTHING, depth))
    return f"{row.first:.2f}, {row.first_accepted:.2f}"


def calibrated() -> str:
    """Return the table of learned trees over the best untrained one, on drafts as they are."""
    drafts = calibrated_drafts()
    rows = [
        (
            comparison.title,
            *lengths(comparison.tau, "g"),
            confidence(comparison),
            f"{comparison.rows[THRESHOLD][3]:.1f}",
            interval(comparison.ratio(EAGLE2, OVER_THRESHOLD)),
            *(interval(comparison.ratio(tree)) for tree in (PAPER, CONDITIONAL)),
        )
        for comparison in drafts
    ]
    columns = ("draft, text", *LENGTHS, "token 2: probability, accepted", "gamma, threshold")
    columns += ("EAGLE-2 / threshold", "C2T's network / best", "conditional / best")
    measured = [comparison.line for comparison in drafts]
    run = measured[-1]["configuration"]
    halves = f"searched on {-(-run['prompts'] // 2)} prompts, judged on {run['prompts'] // 2} others of three sets"
    return table(columns, rows, source(measured, halves, f"{run['max_new_tokens']} new tokens", BY_PROMPT))


def calibrated_extent(tree: str) -> str:
    """Return the lowest and the highest ratio of a learned tree in that table."""
    return _extent(comparison.ratio(tree) for comparison in calibrated_drafts())


def paper_on_eagle() -> str:
    """Return the ratio of C2T's network on `eagle` in greedy text, with its interval."""
    (comparison,) = (comparison for comparison in calibrated_drafts() if comparison.title == "`eagle`, T = 0")
    return interval(comparison.ratio(PAPER))


def text_counts(tree: str) -> str:
    """Return the lowest and the highest ratio of a learned tree over the best untrained one, on drafts with n-grams."""
    return _extent(comparison.ratio(tree) for comparison in comparisons("gain-counts.jsonl", COUNTING))


def _extent(ratios: Iterable[Ratio | None]) -> str:
    return extent(ratio[0] for ratio in ratios if ratio)


class Pairing(NamedTuple):
    """A set and temperature at one tau, and (draft, rival) -> row there."""

    line: Line
    tau: float
    rows: dict[tuple[str, str], Line]

    def ratio(self, draft: str, rival: str) -> Ratio | None:
        """Return the draft's tokens over the rival's, with the interval."""
        row = self.rows.get((draft, rival))
        return row["ratio"] if row else None


def pairings(file: str, draft: str, rival: str) -> list[Pairing]:
    """Return the lines of a file, each at the largest tau where this ratio has an interval; in the names, DRAFT is the
    line's own draft."""
    paired = []
    for line in lines(file):
        rows: dict[float, dict[tuple[str, str], Line]] = {}
        for row in line["figures"]["rows"]:
            rows.setdefault(row["tau"], {})[row["draft"], row["rival"]] = row
        names = tuple(name.replace("DRAFT", line["configuration"].get("draft", "")) for name in (draft, rival))
        tau = max(tau for tau, here in rows.items() if names in here and here[names]["ratio"][1] is not None)
        paired.append(Pairing(line, tau, rows[tau]))
    return paired


def trust_extent() -> str:
    """Return the lowest and the highest ratio of learned trust in n-grams over the best single weight, greedy."""

    def ratio(pairing: Pairing) -> Ratio | None:
        draft = pairing.line["configuration"]["draft"]
        return pairing.ratio(f"{draft}+ngrams", f"{draft}+ngrams, best weight")

    paired = pairings("gain-trust.jsonl", "DRAFT+ngrams", "DRAFT+ngrams, best weight")
    return _extent(ratio(pairing) for pairing in paired if pairing.line["configuration"]["temperature"] == 0)


def fit_extent() -> str:
    """Return the lowest and the highest ratio of a learned path correction over the best tree on marginals."""
    names = "medusa+fit", "all on marginals"
    return _extent(pairing.ratio(*names) for pairing in pairings("gain-parallel.jsonl", *names))


class Gain(NamedTuple):
    """One line of `gain`: its configuration, and (part of the prompts, score, rival, tau) -> ratio."""

    line: Line
    ratios: dict[tuple[str, str, str, float], Ratio]

    def at(self, score: str, tau: float, rival: str = BEST_UNTRAINED, part: str = EVERYTHING) -> str:
        """Return the ratio and its interval, "" where the score does not reach the tau."""
        return interval(self.ratios.get((part, score, rival, tau)))


@cache
def gains(file: str) -> list[Gain]:
    """Return the lines of a file of `gain`."""
    return [
        Gain(line, {(part, score, rival, tau): rest for part, score, rival, tau, *rest in rows})
        for line in lines(file)
        for rows in [line["figures"]["rows"]]
    ]


def gain_at(file: str, score: str, tau: float, **of: Any) -> str:
    """Return one ratio over the best untrained tree; `of` are settings of the line that it is read from."""
    (gain,) = (gain for gain in gains(file) if of.items() <= gain.line["configuration"].items())
    return gain.at(score, tau)


def uncalibrated() -> str:
    """Return the table of learned trees over the best untrained one, on a draft whose logits are multiplied."""
    scores = {
        "C2T's network": PAPER,
        "conditional": "conditional: network, own 5",
        "threshold, right factor known": RIGHT,
    }
    measured = [gain.line for gain in gains("gain-calibration.jsonl")]
    rows = [
        (
            f"x {gain.line['configuration']['scale']:g}",
            *lengths(tau, "g"),
            *(gain.at(score, tau) for score in scores.values()),
        )
        for gain in gains("gain-calibration.jsonl")
        for tau in (1.5, 2.0)
    ]
    note = source(measured, size(measured[-1]["configuration"]), BY_PROMPT)
    return table(("logits", *LENGTHS, *scores), rows, note)


def picture() -> Figure:
    """Return the figure of acceptance over the probabilities of the draft `eagle`."""
    return reliability.picture(
        {
            f"T = {comparison.line['configuration']['temperature']:g}": comparison.line["figures"]["reliability"]
            for comparison in calibrated_drafts()
            if comparison.line["configuration"]["draft"] == "eagle"
        }
    )
