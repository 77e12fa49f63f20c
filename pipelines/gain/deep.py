"""The learned fit behind heads that have read the path already: does it help them in the deep levels?

    python -m pipelines.gain deep --data FOLDER [--prompts 40] [--temperature 0]

Beside the head's own trees, at the head's own temperature and at the best of three, searched on other prompts, as in
`pipelines.gain.parallel`. `python -m pipelines.pair smollm2 --stage eagle+fit` (`eagle3+fit`, `mtp+fit`) trains a fit;
a head without one is left out. FOLDER holds gsm8k/, humaneval/ and mt_bench/ with question.jsonl, in EAGLE's format;
first turns are asked. Points are kept: the same command goes on where it was stopped.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from c2t.errors import InputError
from c2t.models.pairs import FIT, load_pair
from c2t.progress import working
from c2t.prompts import read_prompts
from c2t.storage import paths as checkpoints
from c2t.storage.results import append_line, result_line
from c2t.study.pareto import RIVALS_TOGETHER, compare
from c2t.study.sweep import SweepSettings
from pipelines import terminal
from pipelines.gain.parallel import GRID, POINTS, SCALED, SETS, Study, as_rows, halved, show

RESULTS = checkpoints.root() / "data" / "results" / "gain-deep.jsonl"
DRAFTS = ("eagle", "eagle3", "mtp")
TAUS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5)


def main(
    data: Annotated[Path, typer.Option(help="Folder of gsm8k/, humaneval/ and mt_bench/.")],
    prompts: Annotated[int, typer.Option(help="Prompts of each set.")] = 40,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens of each text.")] = 64,
    temperature: Annotated[float, typer.Option(help="Temperature of the texts; 0 is greedy.")] = 0.0,
    points: Annotated[Path, typer.Option(help="File of the points that are known.")] = POINTS,
    out: Annotated[Path, typer.Option(help="File to append result lines to.")] = RESULTS,
) -> None:
    """Compare autoregressive heads with and without a learned fit."""
    settings = SweepSettings(limit=prompts, max_new_tokens=max_new_tokens, temperature=temperature)
    points.parent.mkdir(parents=True, exist_ok=True)
    for draft in DRAFTS:
        try:
            pairs = {name: load_pair(draft=name, dtype=torch.float32) for name in (draft, draft + FIT)}
        except InputError as error:
            terminal.say(f"{draft} is left out: {error}", error=True)
            continue
        for name in SETS:
            half = halved(read_prompts(data / name / "question.jsonl"), prompts)
            with working(name, "drafts") as tell:
                tell(0, 2, draft)
                own = Study(pairs[draft], half, settings, points)
                factor = own.best_factor()
                found = own.judged(1.0, draft)
                if factor != 1:
                    found += own.judged(factor, draft + SCALED)
                tell(1, 2, draft + FIT)
                found += Study(pairs[draft + FIT], half, settings, points).judged(1.0, draft + FIT)
            ratios = compare(found, draft + FIT, TAUS).ratios
            rows = as_rows(draft + FIT, draft, ratios[RIVALS_TOGETHER if factor != 1 else draft])
            show(f"{draft}, {name}, T = {temperature:g}, {len(half.judged)} prompts", rows)
            sources = {each: pair.marks for each, pair in pairs.items()}
            run = {"draft": draft, "set": name, "grid": GRID, "factor": factor, "sources": sources, **vars(settings)}
            append_line(out, result_line("gain deep", {"prompts": len(half.judged), "rows": rows}, run))
