"""Tables of batches and of serving: milliseconds, tokens/s over the batch size, and the load test of the server."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from c2t.statistics import Statistics
from c2t.study.batches import Speed
from c2t.study.interval import Interval
from pipelines.docs.result_lines import RESULTS, computed, interval, lines, source, table

DRAWN = "bfloat16, head in 8 bits"  # the type whose speeds are drawn: the default of a CPU with AVX-512 and bf16
BUDGET = "budget"


def batches() -> str:
    """Return the table of tokens/s over the batch size, and its figures."""
    found = _over_batches(
        [line for line in lines("batches.jsonl") if line["configuration"]["dtype"].startswith("bfloat16")],
        lambda figures: (figures["contender"], f"{figures['tokens_per_second'][0]:.0f}"),
        lambda figures: interval(Interval(*figures["against_plain"])),
    )
    drawn = [pair for pair in batch_speeds() if batch_figure(pair).exists()]
    return found + "".join(f"\n![Tokens/s over the batch size, {pair}](images/batches-{pair}.png)\n" for pair in drawn)


def batch_speeds() -> dict[str, list[Speed]]:
    """Return the measured speeds over the batch size of each pair in the type DRAWN, named by what competed; the last
    line of each counts."""
    found: dict[str, dict[tuple[int, str], Speed]] = {}
    for line in lines("batches.jsonl"):
        figures, pair = line["figures"], line["configuration"]["pair"]
        if line["configuration"]["dtype"] != DRAWN:
            continue
        rate, ratio = (Interval(*figures[name]) for name in ("tokens_per_second", "against_plain"))
        who = figures["contender"]
        found.setdefault(pair, {})[figures["batch"], who] = Speed(
            figures["batch"], figures["policy"], who, rate, ratio, Statistics()
        )
    return {pair: list(speeds.values()) for pair, speeds in found.items()}


def batch_figure(pair: str) -> Path:
    """Return the file of a pair's figure of tokens/s over the batch size."""
    return RESULTS.parents[1] / "docs" / "images" / f"batches-{pair}.png"


def batches_by_a_model() -> str:
    """Return the same by the model of an H200."""
    return _over_batches(
        lines("batches-model.jsonl"),
        lambda figures: (f"{figures['target']}, {figures['contender']}", f"{figures['tokens_per_second']:.0f}"),
        lambda figures: f"{figures['against_plain']:.2f}",
    )


def budgets() -> str:
    """Return the table of the budget's speed over that of others, by the batch size, of every pair in every type."""
    speeds: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines("batches.jsonl"):
        figures, run = line["figures"], line["configuration"]
        which = run["pair"], run["dtype"]
        here = speeds.setdefault(which, {}).setdefault(figures["batch"], {})
        here[figures["contender"]], last[which] = figures["tokens_per_second"][0], line
    sizes = sorted({size for by_size in speeds.values() for size in by_size})
    rivals: dict[str, Callable[[dict[str, float]], float]] = {
        "plain decoding": lambda here: here["plain"],
        "EAGLE-2 at its best N": lambda here: here["EAGLE-2"],
        "the best of all others": lambda here: max(speed for name, speed in here.items() if name != BUDGET),
    }

    def ratio(here: dict[str, float] | None, rival: Callable[[dict[str, float]], float]) -> str:
        return f"{here[BUDGET] / rival(here):.2f}" if here else ""

    rows = [
        (f"{pair}, {dtype}", over, *(ratio(by_size.get(size), rival) for size in sizes))
        for (pair, dtype), by_size in speeds.items()
        for over, rival in rivals.items()
    ]
    told = "\n".join(source(line, f"{pair}, {dtype}") for (pair, dtype), line in last.items())
    return table(("pair", "the budget over", *map(str, sizes)), rows, told)


def _over_batches(
    found: Sequence[dict[str, Any]],
    cells: Callable[[dict[str, Any]], tuple[str, str]],
    ratio: Callable[[dict[str, Any]], str],
) -> str:
    latest = {(_run(line), line["figures"]["batch"], cells(line["figures"])[0]): line for line in found}
    rows = []
    for (pair, batch, who), line in latest.items():
        figures = line["figures"]
        speed = cells(figures)[1]
        counts = (f"{figures[count]:.2f}" for count in ("tau", "gamma", "draft_passes"))
        rows.append((pair, str(batch), who, f"`{figures['label']}`", speed, ratio(figures), *counts))
    columns = ("pair", "batch", "what", "setting", "tokens/s", "/ plain", "tau", "gamma", "draft passes")
    return table(columns, rows, "\n".join(_sources(list(latest.values()))))


def _run(line: dict[str, Any]) -> str:
    """Return a line's pair, and the type that it was computed in."""
    run = line["configuration"]
    return f"{run['pair']}, {run['dtype']}" if "dtype" in run else run["pair"]


def _sources(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how each pair was measured in each type, and where: the last line's place stands for all of them."""
    last = {_run(line): line for line in found}
    for pair, line in last.items():
        of_pair = [each for each in found if _run(each) == pair]
        run, runs = line["configuration"], [each["configuration"] for each in of_pair]
        commits = dict.fromkeys(each["commit"] for each in of_pair)
        how = f"{run.get('texts')} texts"
        if "timed" in run:
            sizes = sorted({each["timed"] for each in runs})
            how = f"{' or '.join(map(str, sizes))} prompts a size, {computed(run)}"
        how = f"{pair}: {how}, {run['max_new_tokens']} new tokens, T = {run['temperature']:g}"
        yield source({**line, "commit": ", ".join(commits)}, how)


def serving() -> str:
    """Return the table of the load test of the server, by pair and policy."""
    found = lines("serve.jsonl")
    rows = []
    for line in found:
        figures = line["figures"]
        begin, middle, end, _ = figures["memory"]
        rows.append(
            (
                f"{line['configuration']['pair']}, `{figures['policy'].partition(',M=')[0]}`",
                f"{figures['tokens_per_second']:.0f}",
                *(f"{figures['first_token'][at]:.0f}" for at in ("p50", "p99")),
                *(f"{figures['per_token'][at]:.1f}" for at in ("p50", "p99")),
                f"{begin}, {middle}, {end}",
                f"{figures['tau']:.2f}",
                f"{figures['gamma']:.1f}",
                str(figures["texts_compared"]),
            )
        )
    run, *others = ({**line["configuration"], "pair": "", "sources": {}} for line in found)
    assert all(other == run for other in others), "one note stands below all rows: measure all pairs with one setting"
    columns = ("pair, policy", "tokens/s", "first token, ms", "99 %", "per further token, ms", "99 %")
    columns += ("MiB at begin, middle, end", "tau", "gamma", "texts equal to those alone")
    told = f"{run['requests']} requests, Poisson arrivals at {run['rate']:g} a second, {run['at_once']} at once, up to "
    told += f"{run['max_new_tokens']} new tokens, {run['cancelled']:.0%} cancelled, {run['malformed']:.0%} malformed "
    told += f"and refused; {computed(run)}"
    return table(columns, rows, source(found[-1], told))


def ragged() -> str:
    """Return the table of what a batch of trees of different sizes costs."""
    rows, names = [], ("mixed", "mean", "largest")
    for line in (found := lines("ragged.jsonl")):
        figures = line["figures"]
        times = (f"{figures[name]:.1f}" for name in names)
        ratio = f"{figures['mixed'] / figures['mean']:.2f}"
        rows.append((f"{line['configuration']['pair']}, {figures['forward']}", *times, ratio))
    columns = (
        "milliseconds",
        "rows of 1 to 47 (a level: 1 to 12)",
        "all of the mean size",
        "all of the largest",
        "first / second",
    )
    run = found[-1]["configuration"]
    told = f"16 rows behind {run['prefix']} tokens, medians of {run['repeats']}, {computed(run)}"
    return table(columns, rows, source(found[-1], told))
