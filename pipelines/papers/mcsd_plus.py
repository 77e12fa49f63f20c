"""MCSD+'s table 2 and figures 5 and 6 on a pair: acceptance rate, cost and speed over the width W, with and without
decision models, which are trained here on the pair's own forks."""

from dataclasses import replace
from typing import Any

from c2t.classifier import TreeClassifier
from c2t.policies import MCSD, Chain, MCSDPlus, Plain
from c2t.protocols import Policy
from c2t.replay.prompts import default_prompts, read_prompts
from c2t.study.bench import Bench, BenchSettings, bench
from c2t.study.bench import Row as Benched
from c2t.training.settings import MODELS
from pipelines.papers.report import Report, Reproduction
from pipelines.papers.study import Study
from pipelines.papers.verdicts import Conclusion, fact

WIDTHS = (1, 2, 4, 8, 16)
D = 5
TIMED = 2  # prompts that are also decoded for their speed
DECISIONS = ("mcsd-hidden", "mcsd-topk")
# Table 2: alpha of LLaMA-2 7B Chat with TinyLlama-1.1B on MT-Bench, greedy.
PAPER = {"SD": 0.43, "MCSD": 0.63, "MCSD+ W=16": 0.93}
COLUMNS = ("policy", "decision", "exact", "alpha", "paper", "tokens/round", "gamma", "verified tokens", "passes/round")
Label = tuple[str, str]  # policy, decision model


def decisions(study: Study) -> tuple[list[TreeClassifier], list[str]]:
    """Return both decision models, trained on forks along the texts of the harvest's prompts, and notes on their
    training."""
    columns = ("top_probs", "hidden", "target_prob")
    forks = study.harvest(K=max(WIDTHS), levels=1 + D, policy="mcsd+", columns=columns)
    models = [study.trained(replace(MODELS[name], val_fraction=0.25), forks) for name in DECISIONS]
    base = f"share accepted, candidates too, {forks.positives / forks.rows:.3f}"
    precision = [
        f"{name} {m.config.metrics['average_precision']:.3f}" for name, m in zip(DECISIONS, models, strict=True)
    ]
    return models, [
        f"decisions learned from {forks.rows:,} nodes of {forks.trees:,} forks, {base}; average precision on "
        f"validation prompts: {', '.join(precision)}"
    ]


def contestants(models: list[TreeClassifier]) -> dict[Label, Policy]:
    """Return the baselines, and MCSD+ of each width without a decision model and with each."""
    policies: dict[Label, Policy] = {("plain", ""): Plain(), ("SD", ""): Chain(D), ("MCSD", ""): MCSD()}
    for width in WIDTHS:
        policies[f"MCSD+ W={width}", ""] = MCSDPlus(width, D)
        for name, model in zip(DECISIONS, models, strict=True):
            policies[f"MCSD+ W={width}", name] = MCSDPlus(width, D, model)
    return policies


def widths(study: Study) -> Report:
    """MCSD+, table 2 and figures 5 and 6: acceptance and cost over the width, with and without decision models."""
    models, notes = decisions(study)
    policies, s = contestants(models), study.settings
    prompts = [p for path in s.prompts or default_prompts(study.pair.name, "bench") for p in read_prompts(path)]
    settings = BenchSettings(
        max_new_tokens=s.max_new_tokens, temperature=s.temperature, seed=s.seed, limit=s.limit, timed=TIMED
    )
    result = bench(study.pair, list(policies.values()), prompts, settings)
    notes.append(
        "alpha: accepted drafted tokens as a share of D = 5; paper: LLaMA-2 7B, TinyLlama-1.1B, MT-Bench, T = 0"
    )
    return table(dict(zip(policies, result.rows, strict=True)), result, notes)


def table(rows: dict[Label, Benched], result: Bench, notes: list[str]) -> Report:
    """Return the report of a bench."""
    timed = ["tokens/s", "x plain"] if result.rows[0].tokens_per_second else []
    title = f"MCSD+, table 2: {result.prompts} prompts"
    return Report(title, None, [*COLUMNS, *timed], [_cells(*row) for row in rows.items()], conclusions(rows), notes)


def _cells(label: Label, row: Benched) -> list[Any]:
    (name, decision), total = label, row.total
    counts = [total.tau_with_bonus, total.gamma, total.verified_tokens, total.draft_passes]
    speed = [row.tokens_per_second, row.against_plain] if row.tokens_per_second else []
    paper = None if decision else PAPER.get(name)
    return [name, decision or None, "yes" if row.exact else "no", row.alpha, paper, *counts, *speed]


def _passes(rows: dict[Label, Benched], width: int, decision: str) -> float:
    return rows[f"MCSD+ W={width}", decision].total.draft_passes


def conclusions(rows: dict[Label, Benched]) -> list[Conclusion]:
    """Judge the paper's statements on its table."""
    alphas = [rows[f"MCSD+ W={width}", ""].alpha for width in WIDTHS]
    passes = {name: [_passes(rows, width, name) / _passes(rows, width, "") for width in WIDTHS] for name in DECISIONS}
    return [
        fact(
            "alpha grows with W",
            alphas == sorted(alphas),
            "alpha by W: " + ", ".join(f"{alpha:.3f}" for alpha in alphas),
        ),
        *(
            fact(
                f"the decision {name} saves draft passes at every width",
                max(shares) < 1,
                "passes a round over those without it, by W: " + ", ".join(f"{share:.2f}" for share in shares),
            )
            for name, shares in passes.items()
        ),
    ]


DEFAULTS = {"draft": "lm", "temperature": 0.0, "limit": 6, "max_new_tokens": 48, "harvest_limit": 24}
REPORTS = {"mcsd-plus-table2": Reproduction(widths, {**DEFAULTS, "harvest_tokens": 48})}
