"""The text's n-grams, trusted as was learned (`pipelines.ngrams`), against counts that are mixed in without learning.

    python -m pipelines.gain trust --data FOLDER [--prompts 40] [--temperature 0]

Without learning, the weight of the counts is the one that is best on other prompts, of three. Trees are those of
`pipelines.gain.parallel`; a draft that is not on this machine is left out. FOLDER holds gsm8k/, humaneval/ and
mt_bench/ with question.jsonl, in EAGLE's format; first turns are asked. Points are kept: the same command goes on where
it was stopped.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from c2t.errors import InputError
from c2t.models.pairs import NGRAMS, load_pair, with_ngrams
from c2t.progress import working
from c2t.prompts import read_prompts
from c2t.storage import paths as checkpoints
from c2t.storage.results import append_line, result_line
from c2t.study.pareto import compare
from c2t.study.sweep import SweepSettings
from pipelines import terminal
from pipelines.gain.parallel import GRID, POINTS, SETS, Study, as_rows, cheapest, halved, show

RESULTS = checkpoints.root() / "data" / "results" / "gain-trust.jsonl"
DRAFTS = ("eagle", "eagle3", "medusa")
WEIGHTS = (4.0, 16.0, 64.0)
COUNTED = NGRAMS + ", best weight"
TAUS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5)


def main(
    data: Annotated[Path, typer.Option(help="Folder of gsm8k/, humaneval/ and mt_bench/.")],
    prompts: Annotated[int, typer.Option(help="Prompts of each set.")] = 40,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens of each text.")] = 64,
    temperature: Annotated[float, typer.Option(help="Temperature of the texts; 0 is greedy.")] = 0.0,
    drafts: Annotated[str, typer.Option(help="Drafts to compare.")] = ",".join(DRAFTS),
    points: Annotated[Path, typer.Option(help="File of the points that are known.")] = POINTS,
    out: Annotated[Path, typer.Option(help="File to append result lines to.")] = RESULTS,
) -> None:
    """Compare drafts without n-grams, with counts, and with counts that are trusted as was learned."""
    settings = SweepSettings(limit=prompts, max_new_tokens=max_new_tokens, temperature=temperature)
    points.parent.mkdir(parents=True, exist_ok=True)
    for draft in drafts.split(","):
        try:
            alone = load_pair(draft=draft, dtype=torch.float32)
        except InputError as error:
            terminal.say(f"{draft} is left out: {error}", error=True)
            continue
        trusted, counted = with_ngrams(alone), [with_ngrams(alone, weight) for weight in WEIGHTS]
        for name in SETS:
            half = halved(read_prompts(data / name / "question.jsonl"), prompts)
            with working(name, "drafts") as tell:
                tell(0, 3, draft)
                found = Study(alone, half, settings, points).judged(1.0, draft)
                tell(1, 3, draft + COUNTED)
                studies = [Study(pair, half, settings, points) for pair in counted]
                best = cheapest([study.searched() for study in studies])
                found += studies[best].judged(1.0, draft + COUNTED)
                tell(2, 3, draft + NGRAMS)
                found += Study(trusted, half, settings, points).judged(1.0, draft + NGRAMS)
            ratios = compare(found, draft + NGRAMS, TAUS).ratios
            rows = [row for rival in (draft, draft + COUNTED) for row in as_rows(draft + NGRAMS, rival, ratios[rival])]
            show(f"{draft}, {name}, T = {temperature:g}, {len(half.judged)} prompts", rows)
            run = {"draft": draft, "set": name, "grid": GRID, "weight": WEIGHTS[best], "sources": trusted.marks}
            append_line(
                out, result_line("gain trust", {"prompts": len(half.judged), "rows": rows}, run | vars(settings))
            )
