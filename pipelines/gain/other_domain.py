"""Drafts on domains that they were not trained on: `pipelines.gain`'s ratios on prose and doctests, for an EAGLE head
of the embedded target that was trained on code alone. They are compared with thresholds on P with the draft's
temperature searched, which is the untrained way to restore calibration, and with the head that was trained on all
domains.

    python -m pipelines.gain other-domain [--minutes N] [--limit N]

The head is made where it is missing (checkpoints/local/tiny-code): 12 minutes for the target's texts, then --minutes.
"""

import dataclasses
import shutil
from functools import partial
from typing import Annotated

import torch
import typer

from c2t.harvest.harvest import HarvestSettings
from c2t.models.pairs import Pair, load_pair
from c2t.prompts import default_prompts, read_prompts, spread
from c2t.records.reader import describe
from pipelines import options
from pipelines.gain.calibration import TEMPERATURE
from pipelines.gain.full_trees import HARVESTS, Build, kept
from pipelines.gain.scaled import scaled
from pipelines.gain.study import MAIN, PLAIN, ratios, show
from pipelines.gain.subtrees import cuts, read_nodes
from pipelines.gain.variants import RIVALS, scores
from pipelines.pair import build as build_tiny_pair
from pipelines.pair.recipes import PAIRS

RECIPE = dataclasses.replace(
    PAIRS["tiny"], name="tiny-code", heads=("draft",), draft_lm=None, domains=("code",), text_rows=768, embedded=False
)
SCALES = (0.5, 0.7, 0.85, 1.0, 1.2)


def make_head(minutes: float) -> None:
    """Train the head of code for so many minutes, if it is not there."""
    shutil.copytree(PAIRS["tiny"].out / "target", RECIPE.out / "target", dirs_exist_ok=True)
    build_tiny_pair.build(RECIPE, ["texts", "draft"], minutes)


def of_code(scale: float) -> Pair:
    """Return the target with the head of code, its logits multiplied."""
    return scaled(load_pair(RECIPE.name, dtype=torch.float32), scale)


def main(
    minutes: Annotated[float, typer.Option(help="Of training, if the head is not there yet.")] = 20.0,
    limit: options.Texts = 120,
    max_new_tokens: options.TextTokens = 64,
    build: Build = HARVESTS,
) -> None:
    """Compare scores on prose and doctests, for a draft head that was trained on code alone."""
    make_head(minutes)
    files = [path for path in default_prompts("tiny", "harvest") if path.stem not in RECIPE.domains]
    prompts = spread([p for path in files for p in read_prompts(path)], limit)
    settings = HarvestSettings(max_new_tokens=max_new_tokens, temperature=TEMPERATURE)
    build = build / "-".join(path.stem for path in files)
    folders = {
        f"logits x {scale:g}": kept(f"{RECIPE.name}-x{scale:g}", partial(of_code, scale), prompts, settings, build)
        for scale in SCALES
    }
    usual = partial(load_pair, "tiny", dtype=torch.float32)
    folders["head of all domains"] = kept("eagle", usual, prompts, settings, build)
    nodes = read_nodes(folders["logits x 1"])
    found = {name: cuts(nodes, name, score) for name, score in scores(nodes, (*RIVALS, *MAIN))}
    for draft, folder in folders.items():
        name, other = f"threshold on P, {draft}", read_nodes(folder)
        found[name] = cuts(other, name, other.columns["log_joint"])
    rows = ratios(nodes, describe(folders["logits x 1"]).prompts, found, [PLAIN])
    show(f"{RECIPE.name}, T = {TEMPERATURE:g}", list(rows))
