"""Tables of batches and of serving: milliseconds, tokens/s over the batch size, and the load test of the server."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from c2t.costs.statistics import Statistics
from c2t.study.batches import Speed
from c2t.study.interval import Interval
from pipelines.docs.cells import LENGTH, grouped, interval, length, number, table
from pipelines.docs.result_lines import RESULTS, Line, computed, lines, source

DRAWN = "bfloat16"  # the type whose speeds are drawn: the default of a CPU with AMX tiles
BUDGET = "budget"
BETWEEN = (2, 8)  # prompts, whose rows the table leaves out


def batches() -> str:
    """Return the table of tokens/s over the number of prompts decoded together, of every pair in bfloat16."""
    measured = (line for line in lines("batches.jsonl") if line["configuration"]["dtype"].startswith("bfloat16"))
    latest = {(_run(line), _cell(line)): line for line in measured}
    rows = []
    for (run, (batch, contender)), line in latest.items():
        if batch in BETWEEN:
            continue
        figures = line["figures"]
        speed, ratio = f"{figures['tokens_per_second'][0]:.0f}", interval(figures["against_plain"])
        counts = (length(figures["tau"]), number(figures["gamma"]))
        rows.append((run, str(batch), contender, f"`{figures['label']}`", speed, ratio, *counts))
    columns = ("pair", "prompts", "what", "setting", "tokens/s", "/ plain", LENGTH, "gamma")
    return table(columns, grouped(rows, 2), "\n".join(_sources(latest.values())))


def batch_speeds() -> dict[str, list[Speed]]:
    """Return the measured speeds over the batch size of each pair in the type DRAWN, named by what competed; the last
    line of each counts."""
    speeds: dict[str, dict[tuple[int, str], Speed]] = {}
    for line in lines("batches.jsonl"):
        figures, pair = line["figures"], line["configuration"]["pair"]
        if line["configuration"]["dtype"] != DRAWN:
            continue
        rate, ratio = (Interval(*figures[name]) for name in ("tokens_per_second", "against_plain"))
        batch, contender = _cell(line)
        speed = Speed(batch, figures["policy"], contender, rate, ratio, Statistics())
        speeds.setdefault(pair, {})[batch, contender] = speed
    return {pair: list(by_cell.values()) for pair, by_cell in speeds.items()}


def batch_figure(pair: str) -> Path:
    """Return the file of a pair's figure of tokens/s over the batch size."""
    return RESULTS.parents[1] / "docs" / "images" / f"batches-{pair}.png"


def budgets() -> str:
    """Return the table of the budget's speed over that of others, by the number of prompts."""
    last: dict[str, Line] = {}
    by_run: dict[str, dict[int, dict[str, float]]] = {}
    for line in lines("batches.jsonl"):
        run, (batch, contender) = _run(line), _cell(line)
        last[run] = line
        by_run.setdefault(run, {}).setdefault(batch, {})[contender] = line["figures"]["tokens_per_second"][0]
    sizes = sorted({size for by_size in by_run.values() for size in by_size})
    rivals: dict[str, Callable[[dict[str, float]], float]] = {
        "plain decoding": lambda here: here["plain"],
        "EAGLE-2 at its best N": lambda here: here["EAGLE-2"],
        "the best of all others": lambda here: max(speed for name, speed in here.items() if name != BUDGET),
    }

    def ratio(here: dict[str, float] | None, rival: Callable[[dict[str, float]], float]) -> str:
        return f"{here[BUDGET] / rival(here):.2f}" if here else ""

    rows = [
        (run, over, *(ratio(by_size.get(size), rival) for size in sizes))
        for run, by_size in by_run.items()
        for over, rival in rivals.items()
    ]
    note = "\n".join(source(line, run) for run, line in last.items())
    return table(("pair", "the budget over", *map(str, sizes)), grouped(rows), note)


def over_plain(contender: str, batch: int) -> str:
    """Return a contender's speed over plain decoding's, on smollm2 in the type DRAWN; the last line counts."""
    *_, ratio = (
        line["figures"]["against_plain"][0]
        for line in lines("batches.jsonl")
        if _run(line) == f"smollm2, {DRAWN}" and _cell(line) == (batch, contender)
    )
    return f"{ratio:.2f}"


def _cell(line: Line) -> tuple[int, str]:
    """Return how many prompts were decoded together, and what competed."""
    return line["figures"]["batch"], line["figures"]["contender"]


def _run(line: Line) -> str:
    """Return a line's pair, and the type that it was computed in."""
    run = line["configuration"]
    return f"{run['pair']}, {run['dtype']}" if "dtype" in run else run["pair"]


def _sources(measured: Iterable[Line]) -> Iterator[str]:
    """Yield how each pair was measured in each type, and where: the last line stands for all of them."""
    by_run: dict[str, list[Line]] = {}
    for line in measured:
        by_run.setdefault(_run(line), []).append(line)
    for pair, of_pair in by_run.items():
        run = of_pair[-1]["configuration"]
        sizes = sorted({line["configuration"]["timed"] for line in of_pair})
        how = f"{' or '.join(map(str, sizes))} prompts a size, {computed(run)}"
        yield source(of_pair, f"{pair}: {how}, {run['max_new_tokens']} new tokens, T = {run['temperature']:g}")


def serving() -> str:
    """Return the table of the load test of the server, by pair and policy."""
    measured = lines("serve.jsonl")
    rows = []
    for line in measured:
        figures = line["figures"]
        begin, middle, end, _ = figures["memory"]
        rows.append(
            (
                f"{line['configuration']['pair']}, `{figures['policy'].partition(',M=')[0]}`",
                f"{figures['tokens_per_second']:.0f}",
                *(f"{figures['first_token'][at]:.0f}" for at in ("p50", "p99")),
                *(f"{figures['per_token'][at]:.1f}" for at in ("p50", "p99")),
                f"{begin}, {middle}, {end}",
                length(figures["tau"]),
                str(figures["texts_compared"]),
            )
        )
    run, *others = ({**line["configuration"], "pair": "", "sources": {}} for line in measured)
    assert all(other == run for other in others), "one note stands below all rows: measure all pairs with one setting"
    columns = ("pair, policy", "tokens/s", "first token, ms", "99 %", "per further token, ms", "99 %")
    columns += ("MiB at begin, middle, end", LENGTH, "texts equal to those alone")
    how = f"{run['requests']} requests, Poisson arrivals at {run['rate']:g} a second, {run['at_once']} together, up to "
    how += f"{run['max_new_tokens']} new tokens, {run['cancelled']:.0%} cancelled, {run['malformed']:.0%} malformed "
    how += f"and refused; {computed(run)}"
    return table(columns, rows, source(measured, how))
