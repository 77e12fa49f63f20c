"""Tables and numbers of "Does a learned tree pay?": verified tokens of one tree over another's, at equal tau."""

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from c2t.study.interval import Interval
from pipelines.docs import reliability
from pipelines.docs.result_lines import LENGTHS, interval, lengths, lines, source, table

Line = dict[str, Any]

PAPER, CONDITIONAL, THRESHOLD = "paper's network", "conditional network", "threshold on P"
EAGLE2, OWN = "EAGLE-2, levels searched", "conditional network, own 8"
COUNTING = f"{OWN} and the text's counts"  # it also reads how often the text went on so
SHOWN = ("eagle", "eagle3", "medusa+fit", "block", "lookup")
OVER_THRESHOLD, OVER_BEST = 4, 5  # columns of a row of `gain real-pair`: over a threshold, over the best untrained tree
INTERVALS = "95 % intervals by prompt"
BEST_UNTRAINED = "the best untrained tree"  # rival of `gain`
RIGHT = "threshold on P, logits as they were"  # what a temperature that is known to be right gives back
EVERYTHING = "all prompts"


def cell(ratio: Iterable[float | None] | None) -> str:
    """Return a ratio with its interval, "" for one that was not measured."""
    return interval(Interval(*ratio)) if ratio else ""


def extent(ratios: Iterable[float | None]) -> str:
    """Return the least and the largest of the ratios that were measured."""
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{min(known):.2f} to {max(known):.2f}"


def note(found: Iterable[Line], *settings: str) -> str:
    """Return where and when lines were measured, in small print with all their commits."""
    *_, last = found = list(found)
    commits = ", ".join(dict.fromkeys(line["commit"] for line in found))
    return source({**last, "commit": commits}, *settings, INTERVALS)


class Judged(NamedTuple):
    """A line of `gain real-pair` at one tau, and its rows there by the name of the tree."""

    line: Line
    tau: float
    rows: dict[str, list[Any]]

    @property
    def title(self) -> str:
        run = self.line["configuration"]
        return f"`{run['draft']}`, T = {run['temperature']:g}"

    def ratio(self, tree: str, over: int = OVER_BEST) -> list[float | None] | None:
        """Return a tree's tokens over another's, with the interval."""
        return self.rows[tree][over] if tree in self.rows else None


def judged(file: str, tree: str) -> list[Judged]:
    """Return the lines of a file, each at the largest tau where the tree's ratio has an interval; a later line of a
    draft and temperature stands for an earlier one."""
    latest = {(line["configuration"]["draft"], line["configuration"]["temperature"]): line for line in lines(file)}
    found = []
    for line in latest.values():
        rows: dict[float, dict[str, list[Any]]] = {}
        for row in line["figures"]["rows"]:
            rows.setdefault(row[2], {})[row[0]] = row
        tau = max(tau for tau, here in rows.items() if tree in here and here[tree][OVER_BEST][1] is not None)
        found.append(Judged(line, tau, rows[tau]))
    return found


def halves(found: Iterable[Judged]) -> str:
    """Return the small print of such lines."""
    *_, last = found = list(found)
    run = last.line["configuration"]
    told = f"searched on {-(-run['prompts'] // 2)} prompts, judged on {run['prompts'] // 2} others of three sets"
    return note((one.line for one in found), told, f"{run['max_new_tokens']} new tokens")


@cache
def calibrated_drafts() -> list[Judged]:
    """Return the drafts of smollm2 as they are."""
    found = judged("gain-real.jsonl", PAPER)
    chosen = [one for one in found if one.line["configuration"]["draft"] in SHOWN]
    return sorted(chosen, key=lambda one: SHOWN.index(one.line["configuration"]["draft"]))


def sureness(one: Judged, depth: int = 2) -> str:
    """Return the mean probability of the most probable token of a depth, and the share of it that is accepted."""
    rows = (reliability.Reliability(*row) for row in one.line["figures"]["reliability"])
    found = next(row for row in rows if (row.data_set, row.depth) == (reliability.EVERYTHING, depth))
    return f"{found.first:.2f}, {found.first_accepted:.2f}"


def calibrated() -> str:
    """Return the table of learned trees over the best untrained one, on drafts as they are."""
    found = calibrated_drafts()
    rows = [
        (
            one.title,
            *lengths(one.tau, "g"),
            sureness(one),
            f"{one.rows[THRESHOLD][3]:.1f}",
            cell(one.ratio(EAGLE2, OVER_THRESHOLD)),
            *(cell(one.ratio(tree)) for tree in (PAPER, CONDITIONAL)),
        )
        for one in found
    ]
    columns = ("draft, text", *LENGTHS, "token 2: probability, accepted", "gamma, threshold")
    columns += ("EAGLE-2 / threshold", "C2T's network / best", "conditional / best")
    return table(columns, rows, halves(found))


def calibrated_extent(tree: str) -> str:
    """Return the least and the largest ratio of a learned tree in that table."""
    return extent(one.ratio(tree)[0] for one in calibrated_drafts())


def paper_on_eagle() -> str:
    """Return the ratio of C2T's network on `eagle` in greedy text, with its interval."""
    (one,) = (one for one in calibrated_drafts() if one.title == "`eagle`, T = 0")
    return cell(one.ratio(PAPER))


def text_counts(tree: str) -> str:
    """Return the least and the largest ratio of a learned tree over the best untrained one, on drafts with n-grams."""
    return extent(one.ratio(tree)[0] for one in judged("gain-counts.jsonl", COUNTING))


class Pairing(NamedTuple):
    """A set and temperature at one tau, and (draft, rival) -> row there."""

    line: Line
    tau: float
    rows: dict[tuple[str, str], Line]

    def ratio(self, draft: str, rival: str) -> list[float | None] | None:
        """Return the draft's tokens over the rival's, with the interval."""
        row = self.rows.get((draft, rival))
        return row["ratio"] if row else None


def pairings(file: str, draft: str, rival: str) -> list[Pairing]:
    """Return the lines of a file, each at the largest tau where this ratio has an interval; in the names, DRAFT is the
    line's own draft."""
    found = []
    for line in lines(file):
        rows: dict[float, dict[tuple[str, str], Line]] = {}
        for row in line["figures"]["rows"]:
            rows.setdefault(row["tau"], {})[row["draft"], row["rival"]] = row
        names = tuple(name.replace("DRAFT", line["configuration"].get("draft", "")) for name in (draft, rival))
        tau = max(tau for tau, here in rows.items() if names in here and here[names]["ratio"][1] is not None)
        found.append(Pairing(line, tau, rows[tau]))
    return found


@cache
def trusts() -> list[Pairing]:
    """Return what learned trust in n-grams saves in greedy texts."""
    found = pairings("gain-trust.jsonl", "DRAFT+ngrams", "DRAFT+ngrams, best weight")
    return [one for one in found if one.line["configuration"]["temperature"] == 0]


def over_counts(one: Pairing) -> list[float | None]:
    """Return the tokens of learned trust over those of the best single weight."""
    draft = one.line["configuration"]["draft"]
    return one.ratio(f"{draft}+ngrams", f"{draft}+ngrams, best weight")


def trust_extent() -> str:
    """Return the least and the largest ratio of learned trust over counts."""
    return extent(over_counts(one)[0] for one in trusts())


@cache
def fits() -> list[Pairing]:
    """Return what a learned path correction saves on a parallel draft."""
    return pairings("gain-parallel.jsonl", "medusa+fit", "all on marginals")


def fit_extent() -> str:
    """Return the least and the largest ratio over the best tree on marginals."""
    return extent(one.ratio("medusa+fit", "all on marginals")[0] for one in fits())


class Gain(NamedTuple):
    """One line of `gain`: its configuration, and (part of the prompts, score, rival, tau) -> ratio."""

    line: Line
    ratios: dict[tuple[str, str, str, float], Interval]

    def at(self, score: str, tau: float, rival: str = BEST_UNTRAINED, part: str = EVERYTHING) -> str:
        """Return the ratio and its interval, "" where the score does not reach the tau."""
        found = self.ratios.get((part, score, rival, tau))
        return interval(found) if found else ""


@cache
def gains(file: str) -> list[Gain]:
    """Return the lines of a file of `gain`."""
    return [
        Gain(line, {(part, score, rival, tau): Interval(*rest) for part, score, rival, tau, *rest in rows})
        for line in lines(file)
        for rows in [line["figures"]["rows"]]
    ]


def gain_at(file: str, score: str, tau: float, **of: Any) -> str:
    """Return one ratio over the best untrained tree; `of` are settings of the line that it is read from."""
    (one,) = (one for one in gains(file) if of.items() <= one.line["configuration"].items())
    return one.at(score, tau)


def gain_note(found: Iterable[Gain]) -> str:
    """Return the small print of such lines."""
    *_, last = found = list(found)
    run = last.line["configuration"]
    return note((one.line for one in found), f"{run['prompts']} prompts, {run['max_new_tokens']} new tokens")


def uncalibrated() -> str:
    """Return the table of learned trees over the best untrained one, on a draft whose logits are multiplied."""
    scores = {
        "C2T's network": PAPER,
        "conditional": "conditional: network, own 5",
        "threshold, right factor known": RIGHT,
    }
    found = gains("gain-calibration.jsonl")
    rows = []
    for one in found:
        for tau in (1.5, 2.0):
            ratios = (one.at(score, tau) for score in scores.values())
            rows.append((f"x {one.line['configuration']['scale']:g}", *lengths(tau, "g"), *ratios))
    return table(("logits", *LENGTHS, *scores), rows, gain_note(found))


def picture() -> Figure:
    """Return the figure of acceptance over the probabilities of the draft `eagle`."""
    return reliability.picture(
        {
            f"T = {one.line['configuration']['temperature']:g}": one.line["figures"]["reliability"]
            for one in calibrated_drafts()
            if one.line["configuration"]["draft"] == "eagle"
        }
    )
