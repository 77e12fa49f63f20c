"""Parallel drafts: what conditioning their marginals on the path saves, as tokens verified at equal tau.

    python -m pipelines.gain parallel --data FOLDER [--prompts 40] [--temperature 0]

Every draft grows the same two families of trees without any training of theirs: all nodes above a joint probability,
and the N most probable nodes (best-first; DDTree's tree where one forward gives all levels). The better one at each tau
counts. FOLDER holds gsm8k/, humaneval/ and mt_bench/ with question.jsonl, in EAGLE's format.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from c2t.classifier import TreeClassifier
from c2t.models.pairs import BIGRAMS, FIT, NGRAMS, load_pair
from c2t.progress import working
from c2t.prompts import read_prompts
from c2t.storage import paths as checkpoints
from c2t.storage.results import append_line, result_line
from c2t.study.pareto import Ratio, compare
from c2t.study.points import Point
from c2t.study.sweep import SweepSettings, candidates, sweep
from pipelines import terminal

RESULTS = checkpoints.root() / "data" / "results" / "gain-parallel.jsonl"
SETS = ("gsm8k", "humaneval", "mt_bench")
MARGINALS = "medusa"
DRAFTS = (
    *(MARGINALS, MARGINALS + BIGRAMS, MARGINALS + FIT),
    *(MARGINALS + NGRAMS, MARGINALS + BIGRAMS + NGRAMS, MARGINALS + FIT + NGRAMS),
    *("eagle", "eagle" + NGRAMS),
)
SUBJECTS = (MARGINALS + FIT, MARGINALS + FIT + NGRAMS)
SHAPE = "K=16,levels=5"
GRID = (
    f"threshold:threshold=0.2|0.1|0.05|0.02|0.01,W=none,max_width=24,{SHAPE},opttree:N=3|5|8|12|20|40,delta=0,{SHAPE}"
)
TAUS = (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2)


def main(
    data: Annotated[Path, typer.Option(help="Folder of gsm8k/, humaneval/ and mt_bench/.")],
    prompts: Annotated[int, typer.Option(help="Prompts of each set.")] = 40,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens of each text.")] = 64,
    temperature: Annotated[float, typer.Option(help="Temperature of the texts; 0 is greedy.")] = 0.0,
    out: Annotated[Path, typer.Option(help="File to append result lines to.")] = RESULTS,
) -> None:
    """Compare a parallel draft, conditioned and not, with an autoregressive one."""
    settings = SweepSettings(limit=prompts, max_new_tokens=max_new_tokens, temperature=temperature)
    grid = candidates(GRID, TreeClassifier.from_pretrained)
    for name in SETS:
        asked = read_prompts(data / name / "question.jsonl")
        points: list[Point] = []
        with working(name, "drafts") as tell:
            for number, draft in enumerate(DRAFTS):
                tell(number, len(DRAFTS), draft)
                found = sweep(load_pair(draft=draft), grid, asked, settings)
                points += [point._replace(family=draft) for point in found.points]
        rows = [row for subject in SUBJECTS for row in ratios(points, subject)]
        show(f"{name}, T = {temperature:g}, {found.condition.prompts} prompts", rows)
        run = {"set": name, "grid": GRID, **vars(settings)}
        append_line(out, result_line("gain parallel", {"prompts": found.condition.prompts, "rows": rows}, run))


def ratios(points: Sequence[Point], subject: str) -> list[dict[str, Any]]:
    """Return the subject's tokens verified over each other draft's at equal tau, with both and the interval."""
    found = compare(points, subject, TAUS).ratios
    return [row(subject, rival, ratio) for rival in DRAFTS if rival != subject for ratio in found[rival]]


def row(subject: str, rival: str, ratio: Ratio) -> dict[str, Any]:
    """Return a ratio as a row of a result line."""
    shown = {"gamma": ratio.gamma, "rival_gamma": ratio.rival_gamma, "ratio": list(ratio.ratio)}
    return {"draft": subject, "rival": rival, "tau": ratio.tau, **shown}


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a set's ratios."""
    cells = [[r["draft"], r["rival"], r["tau"], r["gamma"], r["rival_gamma"], *r["ratio"]] for r in rows]
    terminal.table(title, ["draft", "rival", "tau", "gamma", "rival's", "ratio", "low", "high"], cells)
