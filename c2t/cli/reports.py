"""The reports of commands: the tables and the figures of a run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from c2t.costs.statistics import Statistics
from c2t.kernels.features import WIDE
from c2t.storage.paths import DEFAULT_PAIR, names_with
from c2t.study.batches import BatchSettings, Speed, best_rival
from c2t.study.bench import Bench
from c2t.study.pareto import Comparison, Ratio, families, front
from c2t.study.points import Condition, Point
from c2t.study.sweep import Sweep
from c2t.training.result import Result


class Table(NamedTuple):
    title: str
    columns: list[str]
    rows: list[list[Any]]


LENGTH = "acceptance length"
COUNTS = f"{LENGTH}: new tokens a round (tau + 1); gamma: verified tokens a round, root included"


def bench_table(bench: Bench) -> Table:
    """Make a table with a row per policy; ratios are of tokens per second, measured in one run."""
    timed = bench.plain_tokens_per_second is not None
    categories = list(bench.rows[0].categories) if len(bench.rows[0].categories) > 1 else []
    alpha = any(row.alpha is not None for row in bench.rows)
    columns = ["policy", "exact", LENGTH, *(f"{LENGTH} {name}" for name in categories), *["alpha"] * alpha]
    columns += ["gamma", "verified tokens", "rounds", "passes/round"]
    columns += ["tokens/s", "x plain", "x HF generate"] if timed else []
    rows: list[list[Any]] = []
    for row in bench.rows:
        exact = "yes" if row.exact else "no"
        cells: list[Any] = [
            row.label,
            exact,
            f"{1 + row.total.tau:.2f}",
            *(f"{1 + row.categories[name]:.2f}" for name in categories),
        ]
        cells += ["-" if row.alpha is None else f"{row.alpha:.2f}"] * alpha
        cells += [
            f"{row.total.gamma:.1f}",
            row.total.verified_tokens,
            row.total.rounds,
            f"{row.total.draft_passes:.1f}",
        ]
        if timed:
            cells += [f"{row.tokens_per_second:.0f}", f"{row.against_plain:.2f}", f"{row.against_hf:.2f}"]
        rows.append(cells)
    return Table(f"{bench.prompts} prompts, T = {bench.settings.temperature:g}", columns, rows)


def bench_remarks(bench: Bench) -> str:
    """Say what the table leaves out."""
    settings = bench.settings
    how = "by the real loop" if settings.live else "by replay"
    lines = [
        COUNTS,
        "settings that a policy's name leaves out are its defaults (EAGLE-2: K=10, 6 levels; C2T: K=W=15, 10 levels)",
        f"up to {settings.max_new_tokens} new tokens a text, seed {settings.seed}, counted {how}",
    ]
    if not settings.live and settings.temperature and any(row.rule == "residual" for row in bench.rows):
        lines.append("policies that sample their candidates: verified by the residual rule, counted by the real loop")
    if any(row.alpha is not None for row in bench.rows):
        lines.append("alpha: tau as a share of the longest draft, where all drafts of a policy have one length")
    if not all(row.exact for row in bench.rows):
        lines.append("not exact: the text is not the target's own, and its rounds are counted by the real loop")
    if bench.looping is not None:
        lines.append(f"{bench.looping:.0%} of the texts end in a loop")
    if bench.skipped:
        lines.append(f"{bench.skipped} turns left out: too long for the target's positions")
    if bench.plain_tokens_per_second is not None:
        speeds = f"plain {bench.plain_tokens_per_second:.0f}, HF generate {bench.hf_tokens_per_second:.0f}"
        timed = min(settings.timed, bench.prompts)
        lines.append(f"tokens/s: one prompt at a time, {timed} prompts, all policies in turn ({speeds})")
    return "\n".join(lines)


def batches_table(rows: Sequence[Speed], settings: BatchSettings) -> Table:
    """Make a table with a row for each policy at each batch size."""
    columns = ["batch", "policy", "tokens/s", "x plain (95 %)", LENGTH, "gamma", "passes/round"]
    cells: list[list[Any]] = []
    for row in rows:
        ratio, low, high = row.against_plain
        between = "" if low is None else f" ({low:.2f}-{high:.2f})"
        speed, counts = row.tokens_per_second.estimate, row.total
        cells.append([row.batch, row.label, f"{speed:.0f}", f"{ratio:.2f}{between}"])
        cells[-1] += [f"{1 + counts.tau:.2f}", f"{counts.gamma:.1f}", f"{counts.draft_passes:.1f}"]
    return Table(f"tokens/s of all prompts together, T = {settings.temperature:g}", columns, cells)


def batches_remarks(rows: Sequence[Speed], settings: BatchSettings) -> str:
    """Say how the speeds were measured, and what came out for a budget."""
    lines = [
        COUNTS,
        f"{settings.max_new_tokens} new tokens a prompt, whatever EOS says; without the prompts' own forward; all "
        "policies in turn on the same batches",
        "intervals: 95 %, bootstrap over batches: "
        + ", ".join(f"{settings.groups(batch)} of {batch}" for batch in settings.batches),
    ]
    if ratios := best_rival(rows):
        lines.append(
            "budget over the fastest other policy: "
            + ", ".join(f"{ratio:.2f} at batch {batch}" for batch, ratio in ratios.items())
        )
    return "\n".join(lines)


def points_table(points: Sequence[Point]) -> Table:
    """Make a table with a row per policy, * where it stands on its family's front."""
    best = {id(point) for group in families(points).values() for point in front(group)}
    rows = [
        [p.label, "*" if id(p) in best else "", f"{1 + p.tau:.2f}", f"{p.gamma:.1f}", f"{p.total.draft_passes:.1f}"]
        for p in points
    ]
    return Table("points (* on the front of their family)", ["policy", "", LENGTH, "gamma", "passes/round"], rows)


def comparison_table(condition: Condition, comparison: Comparison) -> Table:
    """Make a table with a row per rival: the subject's gamma over the rival's at each tau, with its 95 % interval."""
    columns = [f"gamma of {comparison.subject} / gamma of", *(f"tau {tau:g}" for tau in comparison.taus)]
    rows = [[rival, *map(_ratio, ratios)] for rival, ratios in comparison.ratios.items()]
    return Table(f"{condition.title}: below 1, {comparison.subject} needs fewer tokens", columns, rows)


def comparison_figures(comparison: Comparison) -> dict[str, Any]:
    ratios = {
        rival: [
            {**at._asdict(), "ratio": at.ratio.estimate, "low": at.ratio.low, "high": at.ratio.high} for at in ratios
        ]
        for rival, ratios in comparison.ratios.items()
    }
    return {**comparison._asdict(), "ratios": ratios, "headline": headline(comparison)}


def headline(comparison: Comparison) -> str:
    """Say what came out against the strongest rival."""
    if comparison.strongest is None:
        return f"no tau that {comparison.subject} and a rival both reach"
    ratios = [ratio for ratio in comparison.ratios[comparison.strongest] if ratio.ratio.estimate is not None]
    at = ", ".join(f"{_ratio(ratio)} at tau {ratio.tau:g}" for ratio in ratios)
    return f"strongest rival: {comparison.strongest}; gamma of {comparison.subject} is {at} times its own"


def sweep_remarks(sweep: Sweep) -> str:
    """Say how to read the tables, and what they leave out."""
    lines = [
        COUNTS,
        "fronts: smallest gamma for at least a tau, linear between points; intervals: 95 %, paired bootstrap",
    ]
    if sweep.stored:
        lines.append(f"{sweep.stored} of {len(sweep.points)} points were in the file already")
    if sweep.skipped:
        lines.append(f"{sweep.skipped} turns left out: too long for the target's positions")
    return "\n".join(lines)


def _ratio(at: Ratio) -> str:
    ratio, low, high = at.ratio
    if ratio is None:
        return ""
    return f"{ratio:.2f} [{low:.2f}, {high:.2f}]" if low is not None else f"{ratio:.2f}"


def training_table(result: Result) -> Table:
    """Make a table with a row per epoch, and one for before."""
    stages = [("before", result.before)]
    stages += [(f"epoch {i}{' *' if i == result.chosen + 1 else ''}", m) for i, m in enumerate(result.history, 1)]
    rows = [[name, f"{m.recall:.4f}", f"{m.theta:.4f}", f"{m.average_precision:.4f}"] for name, m in stages]
    return Table("on the validation conversations (* saved)", ["", "recall", "theta", "average precision"], rows)


def training_remarks(result: Result) -> str:
    dropped = f", {result.dropped:,} rows with an unknown input dropped" if result.dropped else ""
    lines = [f"{result.rows:,} rows a pass, {result.steps:,} steps, {result.seconds:.1f} s{dropped}"]
    lines += [f"saved in {result.out}", f"to use it: {use_of(result)}"]
    return "\n".join(lines)


def use_of(result: Result) -> str:
    """Return the command that decodes with a new classifier; a pair's name may find an older one."""
    folder = result.out if len(result.out.parts) > 1 else f"./{result.out}"  # without a separator it would be a NAME
    config = result.classifier.config
    pair = "" if config.pair in (None, DEFAULT_PAIR) else f"--pair {config.pair} "
    if pair and config.pair not in names_with("target"):  # the last part of a model's path
        pair = "--model MODEL --prompts FILE "
    decides = not set(config.features).isdisjoint(WIDE)
    return f"c2t bench {pair}" + (f"--policies mcsd+:decision={folder}" if decides else f"--classifier {folder}")


def training_figures(result: Result) -> dict[str, Any]:
    return {
        "out": str(result.out),
        **result.metrics._asdict(),
        "before": result.before._asdict(),
        "epoch": result.chosen + 1,
        "rows": result.rows,
        "steps": result.steps,
        "seconds": result.seconds,
    }


def statistics_line(statistics: Statistics, seconds: float, seed: int | None = None, verbose: bool = False) -> str:
    """Say what a text cost, in one line; verbose: in two. seconds: the prompt's own forward included. seed: of a text
    that was sampled."""
    line = (
        f"{statistics.new_tokens} tokens in {seconds:.1f} s: {statistics.new_tokens / seconds:.0f} tokens/s, "
        f"{statistics.tau_with_bonus:.2f} tokens per forward"
    )
    line += "" if seed is None else f"; seed {seed}"
    if not verbose:
        return line
    return (
        f"{line}\n{statistics.rounds} rounds: gamma {statistics.gamma:.1f} "
        f"({statistics.verified_tokens} verified tokens), {statistics.draft_passes:.1f} draft passes a round"
    )
