"""What commands report: the tables and the figures of a run."""

from typing import Any, NamedTuple

from c2t.benchmark import Bench
from c2t.statistics import Statistics
from c2t.training import Result


class Table(NamedTuple):
    title: str
    columns: list[str]
    rows: list[list[Any]]


def bench_table(bench: Bench) -> Table:
    """A row per policy; ratios are of tokens per second, in one run, to both ways of plain decoding."""
    timed = bench.plain_tokens_per_second is not None
    categories = list(bench.rows[0].categories) if len(bench.rows[0].categories) > 1 else []
    columns = ["policy", "exact", "tau", *(f"tau {name}" for name in categories)]
    columns += ["gamma/round", "gamma", "rounds", "passes/round"]
    columns += ["tokens/s", "x plain", "x HF generate"] if timed else []
    rows: list[list[Any]] = []
    for row in bench.rows:
        exact = "yes" if row.exact else "no"
        cells: list[Any] = [row.label, exact, f"{row.tau:.2f}", *(f"{row.categories[name]:.2f}" for name in categories)]
        cells += [f"{row.gamma_per_round:.1f}", row.gamma, row.rounds, f"{row.draft_passes:.1f}"]
        if timed:
            cells += [f"{row.tokens_per_second:.0f}", f"{row.against_plain:.2f}", f"{row.against_hf:.2f}"]
        rows.append(cells)
    return Table(f"{bench.prompts} prompts, T = {bench.settings.temperature:g}", columns, rows)


def bench_remarks(bench: Bench) -> str:
    """What the table leaves out."""
    settings = bench.settings
    how = "by the real loop" if settings.live else "by replay"
    lines = [
        "tau: accepted drafted tokens a round, bonus token not counted; gamma: verified tokens, root included",
        "settings that a policy's name leaves out are its defaults (EAGLE-2: K=10, 6 levels; C2T: K=W=15, 10 levels)",
        f"up to {settings.max_new_tokens} new tokens a text, seed {settings.seed}, counted {how}",
    ]
    if not settings.live and settings.temperature and any(row.rule == "residual" for row in bench.rows):
        lines.append("policies that sample their candidates: verified by the residual rule, counted by the real loop")
    if bench.looping is not None:
        lines.append(f"{bench.looping:.0%} of the texts end in a loop")
    if bench.skipped:
        lines.append(f"{bench.skipped} turns left out: too long for the target's positions")
    if bench.plain_tokens_per_second is not None:
        speeds = f"plain {bench.plain_tokens_per_second:.0f}, HF generate {bench.hf_tokens_per_second:.0f}"
        lines.append(f"tokens/s: one prompt at a time, {settings.timed} prompts, all policies in turn ({speeds})")
    return "\n".join(lines)


def training_table(result: Result) -> Table:
    """A row per epoch, and one for before."""
    stages = [("before", result.before)]
    stages += [(f"epoch {i}{' *' if i == result.chosen + 1 else ''}", m) for i, m in enumerate(result.history, 1)]
    rows = [[name, f"{m.recall:.4f}", f"{m.theta:.4f}", f"{m.average_precision:.4f}"] for name, m in stages]
    return Table("on held-out prompts (* saved)", ["", "recall", "theta", "average precision"], rows)


def training_remarks(result: Result) -> str:
    dropped = f", {result.dropped:,} rows with NaN dropped" if result.dropped else ""
    return (
        f"{result.rows:,} rows a pass, {result.steps:,} steps, {result.seconds:.1f} s{dropped}\nsaved in {result.out}"
    )


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


def statistics_line(statistics: Statistics) -> str:
    """The cost of a text in one line."""
    return (
        f"{statistics.new_tokens} tokens in {statistics.rounds} rounds: tau {statistics.tau:.2f} "
        f"({statistics.tau_with_bonus:.2f} with bonus), gamma {statistics.gamma} "
        f"({statistics.gamma_per_round:.1f} a round), {statistics.draft_passes:.1f} draft passes a round"
    )


def statistics_figures(statistics: Statistics) -> dict[str, Any]:
    names = ("new_tokens", "rounds", "tau", "tau_with_bonus", "gamma", "gamma_per_round", "draft_passes")
    return {name: getattr(statistics, name) for name in names}
