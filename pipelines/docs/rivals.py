"""Tables of docs/results/rivals.md: c2t next to other programs with the same weights, by `pipelines.bench decoding`."""

from pipelines.docs.cells import grouped, interval, number, table
from pipelines.docs.result_lines import BY_PROMPT, Line, computed, lines, source

# Bits a weight at most, with its scales. transformers' float32 and bfloat16 have no size in their lines.
CLASSES = {"16 bits and more": float("inf"), "8 bits": 12.0, "4 bits": 6.0}
ALL, PLAIN = "all", "c2t, plain"  # all sets together, and a way that every run has
Ways = dict[str, Line]  # by contender


def of_run(file: str, threads: int | None = None, elsewhere: bool = False) -> list[Line]:
    """Return a file's lines of runs with this many threads, by default with the most that one had. They are of the
    machine of its first line, or of another one."""
    by_threads: dict[int, list[Line]] = {}
    for line in lines(file):
        if elsewhere == (line["hardware"] != lines(file)[0]["hardware"]):
            by_threads.setdefault(line["configuration"]["threads"], []).append(line)
    return by_threads.get(max(by_threads, default=0) if threads is None else threads, [])


def ways(threads: int | None = None, elsewhere: bool = False) -> Ways:
    """Return the lines of a run's sets together; a later run stands for an earlier one. See `of_run`."""
    measured = of_run("rivals.jsonl", threads, elsewhere)
    return {line["figures"]["contender"]: line for line in measured if line["figures"]["set"] == ALL}


def bits_class(way: Line) -> str:
    """Return how many bits a weight has, in the words of the table."""
    bits = way["figures"].get("bits_per_weight", float("inf"))
    return [name for name, most in CLASSES.items() if bits <= most][-1]


def speed(way: Line) -> float:
    """Return the tokens/s of a way."""
    return way["figures"]["tokens_per_second"]


def over_others(way: Line, run: Ways) -> list[float] | None:
    """Return the ratio over the fastest plain decoding of a program other than c2t with as many bits, in the same run;
    None without one."""
    others = {name: run[name] for name in way["figures"]["against"]}
    same = [name for name, other in others.items() if bits_class(other) == bits_class(way)]
    fastest = max(same, key=lambda name: speed(others[name]), default=None)
    return way["figures"]["against"].get(fastest)


def over_own(name: str, figures: Line) -> list[float] | None:
    """Return the ratio over plain decoding of the same program: of transformers, over that of its faster type."""
    base = "plain" if name.startswith("c2t") else "transformers" if name.startswith("transformers") else "own"
    return figures.get(f"against_{base}")


def rivals() -> str:
    """Return every way to decode: the most bits a weight first, and of as many bits the fastest first. Its speeds by
    one thread and on another processor are those of other runs, if there are any."""
    every, single, elsewhere = ways(), ways(threads=1), ways(elsewhere=True)
    sets = {line["figures"]["set"] for line in of_run("rivals.jsonl")} - {ALL}
    texts = len(sets) * every[PLAIN]["configuration"]["prompts"]
    rows = []
    for bits in CLASSES:
        of_class = {name: way for name, way in every.items() if bits_class(way) == bits}
        for name in sorted(of_class, key=lambda name: speed(every[name]), reverse=True):
            way, alone, there = of_class[name], single.get(name), elsewhere.get(name)
            figures = way["figures"]
            compared = name.startswith("c2t") or "against_own" in figures
            rows.append(
                (
                    bits,
                    name,
                    number(figures.get("bits_per_weight")),
                    f"{speed(way):.0f}",
                    interval(over_own(name, figures)),
                    interval(over_others(way, every)),
                    number(figures.get("gb_per_second")),
                    f"{1e3 * figures['first_token_seconds'] / texts:.0f}",
                    f"{figures['equal_to_plain']:.0%}" if compared else "",
                    *((f"{speed(alone):.0f}", interval(over_others(alone, single))) if alone else ("", "")),
                    *((f"{speed(there):.0f}", interval(over_own(name, there["figures"]))) if there else ("", "")),
                    interval(over_others(there, elsewhere)) if there else "",
                )
            )
    columns = ("weights", "way", "bits a weight", "tokens/s", "/ its own plain", "/ the fastest other's plain")
    columns += ("GB/s", "first token, ms", "same text", "tokens/s by 1 thread", "/ the fastest other's by 1 thread")
    columns += tuple(f"{column} on an EPYC" for column in ("tokens/s", "/ its own plain", "/ the fastest other's"))
    return table(columns, grouped(rows), "\n".join(origin(run) for run in (every, single, elsewhere) if run))


def in_brief() -> str:
    """Return c2t's ways and the fastest of the others, by their bits a weight."""
    every, rows = ways(), []
    for bits in CLASSES:
        of_class = {name: way for name, way in every.items() if bits_class(way) == bits}
        best = max((name for name in of_class if not name.startswith("c2t")), key=lambda name: speed(every[name]))
        for name in (*(name for name in of_class if name.startswith("c2t")), best):
            rows.append((bits, name, f"{speed(of_class[name]):.0f}", interval(over_others(of_class[name], every))))
    return table(("weights", "way", "tokens/s", "/ the others' fastest plain"), grouped(rows), origin(every))


def origin(run: Ways) -> str:
    """Return where a run was made, in small print."""
    line = run[PLAIN]
    return source(
        line, f"{line['configuration']['prompts']} prompts a set, {computed(line['configuration'])}", BY_PROMPT
    )


def lead(contender: str, elsewhere: bool = False) -> str:
    """Return the speed of a way of c2t over the fastest plain decoding of another program with as many bits."""
    every = ways(elsewhere=elsewhere)
    return interval(over_others(every[contender], every))


def llama_bench() -> str:
    """Return the tokens/s that llama.cpp's tool reads, and those of the loop here, by type; "" without lines."""
    latest = {line["figures"]["way"]: line["figures"] for line in of_run("llama_bench.jsonl")}
    both = ", ".join(f"{way} {read['tool']:.0f} and {read['loop']:.0f}" for way, read in latest.items())
    return both and f", in tokens/s: {both.replace('llama.cpp, ', '')}"


def row_prices() -> str:
    """Return what a step of 2 to 16 rows costs over a step of one, in %, for every program; a later run stands for an
    earlier one."""
    latest = {line["figures"]["way"]: line for line in of_run("forward.jsonl")}
    sizes, rows = (2, 4, 8, 16), []
    for way, line in latest.items():
        cost = dict(zip(line["figures"]["rows"], map(sum, line["figures"]["milliseconds"]), strict=True))
        prices = ((cost[size] / cost[1] - 1) / (size - 1) for size in sizes)
        rows.append((way, f"{cost[1]:.1f}", *(f"{price:.0%}" for price in prices)))
    columns = ("way", "a step of 1 row, ms", *(f"to {size} rows" for size in sizes))
    return table(columns, rows, source(list(latest.values())))
