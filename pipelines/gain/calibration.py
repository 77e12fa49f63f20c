"""Drafts that are not calibrated: `pipelines.gain`'s ratios for a draft whose logits are multiplied, so that it is
surer (or less sure) of itself than it should be. It ranks the same tokens; only its probabilities are off.

    python -m pipelines.gain calibration [--scales 0.5,2] [--draft eagle] [--limit N]
"""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from c2t.harvest.harvest import HarvestSettings
from c2t.models.pairs import load_pair
from c2t.prompts import default_prompts, read_prompts, spread
from c2t.records.reader import describe
from c2t.storage import paths as checkpoints
from c2t.storage.results import append_line, result_line
from pipelines import options
from pipelines.gain.full_trees import HARVESTS, Build, Condition, harvested, kept
from pipelines.gain.scaled import scaled
from pipelines.gain.study import EVERYTHING, MAIN, PLAIN, ratios, show
from pipelines.gain.subtrees import cuts, read_nodes
from pipelines.gain.variants import RIVALS, scores

RESULTS = checkpoints.root() / "data" / "results" / "gain-calibration.jsonl"
TEMPERATURE = 0.4


def main(
    scales: Annotated[str, typer.Option(help="What logits are multiplied by.")] = "2,0.5",
    draft: Annotated[str, typer.Option(help="One of the pair's own heads.")] = "eagle",
    limit: options.Texts = 120,
    max_new_tokens: options.TextTokens = 64,
    build: Build = HARVESTS,
    out: Annotated[Path, typer.Option(help="File to append a result line for each scale to.")] = RESULTS,
) -> None:
    """Compare scores for a draft that is surer, or less sure, of itself than it should be."""
    prompts = spread([p for path in default_prompts("tiny", "harvest") for p in read_prompts(path)], limit)
    settings = HarvestSettings(max_new_tokens=max_new_tokens, temperature=TEMPERATURE)
    condition, build = Condition(draft, TEMPERATURE), build / "harvest"
    pair = load_pair("tiny", draft=draft, dtype=torch.float32)
    before = read_nodes(harvested(condition, prompts, settings, build))
    for scale in map(float, scales.split(",")):
        folder = kept(f"{draft}-x{scale:g}", partial(scaled, pair, scale), prompts, settings, build)
        nodes = read_nodes(folder)
        found = {name: cuts(nodes, name, score) for name, score in scores(nodes, (*RIVALS, *MAIN))}
        name = "threshold on P, logits as they were"
        found[name] = cuts(before, name, before.columns["log_joint"])
        rows = [row for row in ratios(nodes, describe(folder).prompts, found, [PLAIN]) if row.prompts == EVERYTHING]
        show(f"{condition.title}, logits x {scale:g}", rows)
        run = {"draft": draft, "scale": scale, "prompts": len(prompts), **asdict(settings)}
        append_line(out, result_line("gain calibration", {"trees": describe(folder).trees, "rows": rows}, run))
