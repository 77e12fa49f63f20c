"""DySpec's tables 1 to 4: tokens accepted per round by DySpec, Sequoia and SpecInfer with trees of one size.

Target temperatures 0 and 0.6, draft temperature 0.6, residual rule (at temperature 0 all rules are the greedy one). The
rates that shape Sequoia's tree are measured first, on the prompts of the harvest. SpecInfer's trees are independent
chains, 8 of 8 tokens or 16 of 48 [choice: the paper does not print them; the second is that of Sequoia's paper]. Its
tables 1 to 3 have trees of 64 tokens, its table 4 of 768. tau counts the bonus token, as the paper's does.
"""

from dataclasses import replace

from c2t.policies import DySpec, Sequoia, SpecInfer
from c2t.protocols import Policy
from c2t.replay.prompts import read_prompts, spread
from c2t.study.acceptance import acceptance_by_rank
from c2t.study.evaluate import encode
from pipelines.papers.report import Report, Reproduction, Row, of_policies
from pipelines.papers.study import Study, default
from pipelines.papers.verdicts import above, all_of, tau_ratio

LIMIT = 12  # fewer prompts than elsewhere: the target runs on every tree at T > 0
DRAFT_TEMPERATURE, TEMPERATURES = 0.6, (0.0, 0.6)
CONFIGS = {64: (8, *[1] * 7), 768: (16, *[1] * 47)}
PAPER = {  # size -> pair -> (method, temperature) -> C4, OWT, CNN
    64: {
        "JF68M, L2 7B": {
            ("DySpec", 0.0): "5.25, 3.79, 3.97", ("DySpec", 0.6): "3.71, 3.07, 3.18",
            ("Sequoia", 0.0): "4.99, 3.81, 4.04", ("Sequoia", 0.6): "3.45, 3.04, 3.22",
            ("SpecInfer", 0.0): "3.32, 2.54, 2.58", ("SpecInfer", 0.6): "3.44, 2.97, 3.06",
        },
        "JF68M, L2 13B": {
            ("DySpec", 0.0): "4.98, 3.59, 3.82", ("DySpec", 0.6): "3.62, 3.02, 3.11",
            ("Sequoia", 0.0): "4.35, 3.44, 3.67", ("Sequoia", 0.6): "3.15, 2.80, 2.91",
            ("SpecInfer", 0.0): "3.14, 2.44, 2.52", ("SpecInfer", 0.6): "3.15, 2.75, 2.84",
        },
        "L2 7B, L2 70B": {
            ("DySpec", 0.0): "9.10, 7.23, 6.93", ("DySpec", 0.6): "6.21, 6.77, 6.95",
            ("Sequoia", 0.0): "6.08, 6.41, 6.42", ("Sequoia", 0.6): "5.72, 6.07, 6.07",
            ("SpecInfer", 0.0): "4.67, 4.83, 4.83", ("SpecInfer", 0.6): "5.75, 5.46, 5.75",
        },
    },
    768: {
        "L2 7B, L2 70B": {
            ("DySpec", 0.0): "16.04, 11.79, 11.46", ("DySpec", 0.6): "7.14, 7.66, 7.02",
            ("Sequoia", 0.0): "9.40, 9.81, 9.54", ("Sequoia", 0.6): "8.96, 9.12, 8.80",
            ("SpecInfer", 0.0): "8.66, 7.36, 7.87", ("SpecInfer", 0.6): "6.93, 6.18, 6.24",
        },
    },
}  # fmt: skip


def rates(study: Study, texts: int = 24) -> tuple[float, ...]:
    """Measure how often the first, second, ... sample is the accepted one, on prompts of the harvest."""
    s = study.settings
    prompts = [p for file in s.harvest_prompts or default(s.pair, "harvest") for p in read_prompts(file)]
    ids = encode(study.pair, spread(prompts, min(texts, s.harvest_limit)), s.max_new_tokens, study.sampling).ids
    return acceptance_by_rank(
        study.pair,
        ids,
        sampling=study.sampling,
        draft_temperature=DRAFT_TEMPERATURE,
        rule="residual",
        max_new_tokens=s.max_new_tokens,
    ).rates


def tables1to3(study: Study) -> Report:
    """DySpec, tables 1 to 3: tokens accepted per round with trees of 64 tokens."""
    return table(study, 64)


def table4(study: Study) -> Report:
    """DySpec, table 4: tokens accepted per round with trees of 768 tokens."""
    return table(study, 768)


def table(study: Study, size: int) -> Report:
    """Return the comparison with trees of one of the paper's sizes."""
    rows: list[Row] = []
    conclusions = []
    for temperature in TEMPERATURES:
        part = Study(study.pair, replace(study.settings, temperature=temperature))
        policies: dict[str, Policy] = {
            "DySpec": DySpec(size, temperature=DRAFT_TEMPERATURE),
            "Sequoia": Sequoia(rates(part), size, temperature=DRAFT_TEMPERATURE),
            "SpecInfer": SpecInfer(CONFIGS[size], temperature=DRAFT_TEMPERATURE),
        }
        counts = {name: part.count(policy, "residual") for name, policy in policies.items()}
        for name, counted in counts.items():
            quotes = {f"paper: {pair}": cells[name, temperature] for pair, cells in PAPER[size].items()}
            rows.append(Row(name, f"T={temperature:g}", counted, None, quotes))
        ratios = {name: tau_ratio(counts["DySpec"], counts[name]) for name in ("Sequoia", "SpecInfer")}
        conclusions.append(
            all_of(
                f"DySpec accepts more than Sequoia and SpecInfer at T = {temperature:g}",
                [above("", f"ratio of tau to {name}", ratio) for name, ratio in ratios.items()],
            )
        )
    return of_policies(
        f"DySpec, trees of {size} tokens, root included (paper: C4, OWT, CNN)",
        rows,
        conclusions,
        [f"draft temperature {DRAFT_TEMPERATURE:g}, residual rule; SpecInfer: {CONFIGS[size][0]} chains"],
        bonus=True,
    )


DEFAULTS = {"draft": "lm", "limit": LIMIT, "temperature": TEMPERATURES[-1]}
REPORTS = {"dyspec-tables1-3": Reproduction(tables1to3, DEFAULTS), "dyspec-table4": Reproduction(table4, DEFAULTS)}
