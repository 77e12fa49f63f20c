"""MCSD+'s table 2 and figures 5 and 6 on a pair: acceptance rate, cost and speed over the width W, with and without
decision models, which are trained here on the pair's own forks."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from c2t.classifier import TreeClassifier
from c2t.cli import terminal
from c2t.decoding import Policy
from c2t.harvest.harvest import HarvestSettings, harvest
from c2t.models.pairs import Pair, load_pair
from c2t.policies import MCSD, Chain, MCSDPlus, Plain
from c2t.prompts import default_prompts, read_prompts, spread
from c2t.storage import paths as checkpoints
from c2t.study.bench import Bench, BenchSettings, Row, bench
from c2t.training.fit import train
from c2t.training.settings import MODELS

WIDTHS = (1, 2, 4, 8, 16)
D = 5
DECISIONS = ("mcsd-hidden", "mcsd-topk")
# Table 2: alpha of LLaMA-2 7B Chat with TinyLlama-1.1B on MT-Bench, greedy.
PAPER = {"SD": "0.43", "MCSD": "0.63", "MCSD+ W=16": "0.93"}


def decisions(pair: Pair, folder: Path, limit: int, max_new_tokens: int, temperature: float) -> list[TreeClassifier]:
    """Both decision models, trained on forks along the texts of the pair's harvest prompts."""
    prompts = [prompt for path in default_prompts(pair.name, "harvest") for prompt in read_prompts(path)]
    columns = ("top_probs", "hidden", "target_prob")
    settings = HarvestSettings(
        K=max(WIDTHS),
        levels=1 + D,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        policy="mcsd+",
        columns=columns,
    )
    rows = harvest(pair, spread(prompts, limit), folder / "forks", settings, overwrite=True)
    print(f"harvest: {rows.rows:,} nodes of {rows.trees:,} forks")
    trained = []
    for name in DECISIONS:
        settings = replace(MODELS[name], val_fraction=0.25)
        result = train([rows.folder], folder / name / "classifier", settings, overwrite=True)
        precision, base = result.metrics.average_precision, rows.positives / rows.rows
        print(
            f"{name}: average precision {precision:.3f} on held-out prompts; share accepted, candidates too, {base:.3f}"
        )
        trained.append(result.classifier.to(pair.target.device))
    return trained


def contestants(models: list[TreeClassifier], threshold: float) -> dict[tuple[str, str], Policy]:
    """(label, decision model) -> policy: the baselines, and MCSD+ of each width."""
    policies: dict[tuple[str, str], Policy] = {("plain", ""): Plain(), ("SD", ""): Chain(D), ("MCSD", ""): MCSD()}
    for width in WIDTHS:
        policies[f"MCSD+ W={width}", ""] = MCSDPlus(width, D)
        for name, model in zip(DECISIONS, models, strict=True):
            policies[f"MCSD+ W={width}", name] = MCSDPlus(width, D, model, threshold)
    return policies


def table(labels: list[tuple[str, str]], found: Bench) -> tuple[list[str], list[list[str]]]:
    columns = [
        "policy",
        "decision",
        "exact",
        "alpha",
        "paper",
        "tokens/round",
        "gamma",
        "verified tokens",
        "passes/round",
    ]

    def cells(label: str, decision: str, row: Row) -> list[str]:
        alpha = "-" if row.alpha is None else f"{row.alpha:.3f}"
        paper = PAPER.get(label, "") if not decision else ""
        counts = [
            f"{row.tau_with_bonus:.2f}",
            f"{row.total.gamma:.1f}",
            f"{row.total.verified_tokens:,}",
            f"{row.total.draft_passes:.1f}",
        ]
        speed = [f"{row.tokens_per_second:.0f}", f"{row.against_plain:.2f}"] if row.tokens_per_second else []
        return [label, decision or "-", "yes" if row.exact else "no", alpha, paper, *counts, *speed]

    speeds = ["tokens/s", "x plain"] if found.rows[0].tokens_per_second else []
    return [*columns, *speeds], [cells(*label, row) for label, row in zip(labels, found.rows, strict=True)]


def main(
    pair: str = "tiny",
    draft: Annotated[str, typer.Option(help="One of the pair's own, a folder, or a Hub id.")] = "lm",
    temperature: float = 0.0,
    threshold: Annotated[float, typer.Option(help="Of the decision models.")] = MCSDPlus.threshold,
    harvest_limit: Annotated[int, typer.Option(help="Prompts that the decision models learn from.")] = 24,
    limit: Annotated[int, typer.Option(help="Prompts of the comparison.")] = 6,
    timed: Annotated[int, typer.Option(help="Of these, decoded against the clock; 0: none.")] = 2,
    max_new_tokens: int = 48,
    device: str = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder.", show_default="checkpoints/local/PAIR-mcsd+")] = None,
) -> None:
    loaded = load_pair(pair, draft=draft, device=device)
    folder = out or checkpoints.root() / "checkpoints" / "local" / f"{loaded.name}-mcsd+"
    models = decisions(loaded, folder, harvest_limit, max_new_tokens, temperature)
    policies = contestants(models, threshold)
    prompts = [prompt for path in default_prompts(loaded.name, "bench") for prompt in read_prompts(path)]
    settings = BenchSettings(max_new_tokens=max_new_tokens, temperature=temperature, limit=limit, timed=timed)
    found = bench(loaded, list(policies.values()), prompts, settings)
    terminal.table(f"{found.prompts} prompts, T = {temperature:g}, draft {draft}", *table(list(policies), found))
    print("alpha: accepted drafted tokens as a share of D = 5; paper: LLaMA-2 7B, TinyLlama-1.1B, MT-Bench, T = 0")


if __name__ == "__main__":
    typer.run(main)
