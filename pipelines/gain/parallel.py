"""Parallel drafts: what conditioning their marginals on the path saves, as tokens verified at equal tau.

    python -m pipelines.gain parallel --data FOLDER [--prompts 40] [--temperature 0]

Every draft grows the same two families of trees without any training of theirs: all nodes above a joint probability,
and the N most probable nodes (best-first; DDTree's tree where one forward gives all levels). The better one at each tau
counts. On marginals as they are three more families compete, each by itself: Medusa's static tree, from accuracies
that are measured on other prompts, CaDDTree, and the N most probable nodes behind an entropy gate.

FOLDER holds gsm8k/, humaneval/ and mt_bench/ with question.jsonl, in EAGLE's format.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from c2t.classifier import TreeClassifier
from c2t.models.pairs import BIGRAMS, FIT, NGRAMS, Pair, load_pair
from c2t.policies.medusa_tree import Accuracies, MedusaTree
from c2t.policies.spec import describe
from c2t.progress import working
from c2t.prompts import default_prompts, read_prompts, spread
from c2t.storage import paths as checkpoints
from c2t.storage.results import append_line, result_line
from c2t.study.accuracies import accuracies
from c2t.study.evaluate import continuations, encode
from c2t.study.pareto import Ratio, compare
from c2t.study.points import Point
from c2t.study.sweep import Candidate, SweepSettings, candidates, sweep
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
RANKS, LEVELS = 16, 5
SHAPE = f"K={RANKS},levels={LEVELS}"
GRID = (
    f"threshold:threshold=0.2|0.1|0.05|0.02|0.01,W=none,max_width=24,{SHAPE},opttree:N=3|5|8|12|20|40,delta=0,{SHAPE}"
)
STATIC = (3, 5, 8, 12, 20, 40, 64)  # tokens of the static trees
MEASURED_ON = 24  # prompts that the accuracies come from, none of which is judged on
OTHERS = {  # families on marginals as they are
    "caddtree": f"caddtree:slope=0.3|0.15|0.08|0.04|0.02|0.01,{SHAPE}",
    "gate": ",".join(
        f"gate:high={high},low={low},of=opttree:N=5|12|40,delta=0,{SHAPE}" for high, low in ((2, 1), (3, 2), (4, 3))
    ),
}
RIVALS = tuple(f"{MARGINALS}, {family}" for family in ("static", *OTHERS))
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
                pair = load_pair(draft=draft)
                found = sweep(pair, grid, asked, settings)
                points += [point._replace(family=draft) for point in found.points]
                if draft == MARGINALS:
                    others = [
                        static_trees(pair, settings),
                        *(candidates(each, TreeClassifier.from_pretrained) for each in OTHERS.values()),
                    ]
                    for rival, own in zip(RIVALS, others, strict=True):
                        counted = sweep(pair, own, asked, settings).points
                        points += [point._replace(family=rival) for point in counted]
        rows = [row for subject in SUBJECTS for row in ratios(points, subject)]
        show(f"{name}, T = {temperature:g}, {found.condition.prompts} prompts", rows)
        run = {"set": name, "grid": GRID, **vars(settings)}
        append_line(out, result_line("gain parallel", {"prompts": found.condition.prompts, "rows": rows}, run))


def static_trees(pair: Pair, settings: SweepSettings) -> list[Candidate]:
    """Return Medusa's static trees of this pair, of several sizes, from the prompts that classifiers learn from."""
    prompts = [prompt for path in default_prompts(pair.name, "harvest") for prompt in read_prompts(path)]
    ids = encode(pair, spread(prompts, MEASURED_ON), settings.max_new_tokens, settings.sampling).ids
    texts = continuations(pair, ids, settings.max_new_tokens, LEVELS, settings.sampling)
    rates = Accuracies(accuracies(pair.draft, texts, LEVELS, RANKS).rates, MARGINALS)
    policies = [MedusaTree(rates, size) for size in STATIC]
    return [Candidate("static", policy, describe(policy), describe(policy, brief=True)) for policy in policies]


def ratios(points: Sequence[Point], subject: str) -> list[dict[str, Any]]:
    """Return the subject's tokens verified over each other draft's and family's at equal tau, with both and the
    interval."""
    found = compare(points, subject, TAUS).ratios
    return [row(subject, rival, ratio) for rival in (*DRAFTS, *RIVALS) if rival in found for ratio in found[rival]]


def row(subject: str, rival: str, ratio: Ratio) -> dict[str, Any]:
    """Return a ratio as a row of a result line."""
    shown = {"gamma": ratio.gamma, "rival_gamma": ratio.rival_gamma, "ratio": list(ratio.ratio)}
    return {"draft": subject, "rival": rival, "tau": ratio.tau, **shown}


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a set's ratios."""
    cells = [[r["draft"], r["rival"], r["tau"], r["gamma"], r["rival_gamma"], *r["ratio"]] for r in rows]
    terminal.table(title, ["draft", "rival", "tau", "gamma", "rival's", "ratio", "low", "high"], cells)
