"""Tables of batches and of serving: milliseconds, tokens/s over the batch size, and the load test of the server."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from c2t.costs.statistics import Statistics
from c2t.study.batches import Speed
from c2t.study.interval import Interval
from pipelines.docs.result_lines import RESULTS, computed, interval, lines, source, table

DRAWN = "bfloat16, head in 8 bits"  # the type whose speeds are drawn: the default of a CPU with AVX-512 and bf16
BUDGET = "budget"


def batches() -> str:
    """Return the table of tokens/s over the number of prompts decoded together, of every pair in bfloat16."""
    found = (line for line in lines("batches.jsonl") if line["configuration"]["dtype"].startswith("bfloat16"))
    latest = {(_run(line), _cell(line)): line for line in found}
    rows, shown = [], ("", 0)
    for (run, (batch, contender)), line in latest.items():
        figures = line["figures"]
        tau, speed = figures["tau"], f"{figures['tokens_per_second'][0]:.0f}"
        counts = (f"{tau:.2f}", f"{tau + 1:.2f}", f"{figures['gamma']:.1f}")
        place = ("" if run == shown[0] else run, "" if (run, batch) == shown else str(batch))
        ratio = interval(Interval(*figures["against_plain"]))
        rows.append((*place, contender, f"`{figures['label']}`", speed, ratio, *counts))
        shown = run, batch
    columns = ("pair", "prompts", "what", "setting", "tokens/s", "/ plain", "tau", "acceptance length", "gamma")
    return table(columns, rows, "\n".join(_sources(list(latest.values()))))


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
    """Return the budget's speed over that of others by the model of an H200."""
    found = lines("batches-model.jsonl")
    speeds = [
        (f"{_run(line)}, {line['figures']['target']}", line, line["figures"]["tokens_per_second"]) for line in found
    ]
    return _budget_over(speeds, "\n".join(_sources(found)))


def budgets() -> str:
    """Return the table of the budget's speed over that of others, by the number of prompts."""
    found = lines("batches.jsonl")
    last = {_run(line): line for line in found}
    speeds = [(_run(line), line, line["figures"]["tokens_per_second"][0]) for line in found]
    return _budget_over(speeds, "\n".join(source(line, run) for run, line in last.items()))


def over_plain(contender: str, batch: int) -> str:
    """Return a contender's speed over plain decoding's, on smollm2 in the type DRAWN; the last line counts."""
    *_, ratio = (
        line["figures"]["against_plain"][0]
        for line in lines("batches.jsonl")
        if _run(line) == f"smollm2, {DRAWN}" and _cell(line) == (batch, contender)
    )
    return f"{ratio:.2f}"


def _budget_over(speeds: Iterable[tuple[str, dict[str, Any], float]], note: str) -> str:
    """Return the table of the budget's speed over that of others. speeds: a run's name, a line of it, its speed."""
    by_run: dict[str, dict[int, dict[str, float]]] = {}
    for run, line, speed in speeds:
        batch, contender = _cell(line)
        by_run.setdefault(run, {}).setdefault(batch, {})[contender] = speed
    sizes = sorted({size for by_size in by_run.values() for size in by_size})
    rivals: dict[str, Callable[[dict[str, float]], float]] = {
        "plain decoding": lambda here: here["plain"],
        "EAGLE-2 at its best N": lambda here: here["EAGLE-2"],
        "the best of all others": lambda here: max(speed for name, speed in here.items() if name != BUDGET),
    }

    def ratio(here: dict[str, float] | None, rival: Callable[[dict[str, float]], float]) -> str:
        return f"{here[BUDGET] / rival(here):.2f}" if here else ""

    rows = [
        ("" if number else run, over, *(ratio(by_size.get(size), rival) for size in sizes))
        for run, by_size in by_run.items()
        for number, (over, rival) in enumerate(rivals.items())
    ]
    return table(("pair", "the budget over", *map(str, sizes)), rows, note)


def _cell(line: dict[str, Any]) -> tuple[int, str]:
    """Return how many prompts were decoded together, and what competed."""
    return line["figures"]["batch"], line["figures"]["contender"]


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
                f"{figures['tau'] + 1:.2f}",
                str(figures["texts_compared"]),
            )
        )
    run, *others = ({**line["configuration"], "pair": "", "sources": {}} for line in found)
    assert all(other == run for other in others), "one note stands below all rows: measure all pairs with one setting"
    columns = ("pair, policy", "tokens/s", "first token, ms", "99 %", "per further token, ms", "99 %")
    columns += ("MiB at begin, middle, end", "tau", "acceptance length", "texts equal to those alone")
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
