"""Tables of docs/results/rivals.md: c2t next to other programs with the same weights, by `pipelines.bench decoding`."""

from pipelines.docs.cells import grouped, interval, number, table
from pipelines.docs.result_lines import BY_PROMPT, Line, computed, lines, source

CLASSES = {"4 bits": 6.0, "8 bits": 12.0, "16 bits and more": float("inf")}  # bits a weight at most, with its scales
UNSIZED = "16 bits and more"  # transformers' float32 and bfloat16 have no size in their lines
ALL = "all"  # sets together


def latest(threads: int) -> dict[str, Line]:
    """Return the lines of the last run with so many threads, all its sets together, by contender."""
    of_all = [line for line in lines("rivals.jsonl") if line["figures"]["set"] == ALL]
    return {line["figures"]["contender"]: line for line in of_all if line["configuration"]["threads"] == threads}


def bits_class(figures: Line) -> str:
    """Return how many bits a weight has, in the words of the table."""
    bits = figures.get("bits_per_weight")
    return UNSIZED if bits is None else next(name for name, most in CLASSES.items() if bits <= most)


def over_best_rival(figures: Line, ways: dict[str, Line]) -> list[float] | None:
    """Return the ratio over the fastest plain decoding of a program other than c2t with as many bits; None without
    one."""
    same = [other for other in figures["against"] if bits_class(ways[other]["figures"]) == bits_class(figures)]
    fastest = max(same, key=lambda other: ways[other]["figures"]["tokens_per_second"], default=None)
    return None if fastest is None else figures["against"][fastest]


def rivals(threads: int) -> str:
    """Return every way to decode by its bits a weight: the slowest class first, the fastest way of it first."""
    ways = latest(threads)
    rows = []
    for name, line in ways.items():
        figures = line["figures"]
        run = line["configuration"]
        texts = run["prompts"] * (len({of["figures"]["set"] for of in lines("rivals.jsonl")}) - 1)
        same = figures["equal_to_plain"] if name.startswith("c2t") or "against_own" in figures else None
        rows.append(
            (
                bits_class(figures),
                name,
                number(figures.get("bits_per_weight")),
                f"{figures['tokens_per_second']:.0f}",
                interval(figures.get("against_own") or (figures["against_plain"] if name.startswith("c2t") else None)),
                interval(over_best_rival(figures, ways)),
                number(figures.get("gb_per_second")),
                f"{1e3 * figures['first_token_seconds'] / texts:.0f}",
                "" if same is None else f"{same:.0%}",
            )
        )
    order = list(CLASSES)
    rows.sort(key=lambda row: (-order.index(row[0]), -float(row[3])))
    first = next(iter(ways.values()))
    run = first["configuration"]
    note = source(first, f"{run['prompts']} prompts a set, {computed(run)}", BY_PROMPT)
    columns = ("weights", "way", "bits a weight", "tokens/s", "/ its own plain", "/ the fastest other's plain")
    return table((*columns, "GB/s", "first token, ms", "same text"), grouped(rows), note)


def in_brief(threads: int) -> str:
    """Return c2t's ways and the fastest of the others, by their bits a weight."""
    ways = latest(threads)
    speeds = {name: line["figures"]["tokens_per_second"] for name, line in ways.items()}
    rows = []
    for bits in CLASSES:
        of_class = [name for name, line in ways.items() if bits_class(line["figures"]) == bits]
        best = max((name for name in of_class if not name.startswith("c2t")), key=speeds.__getitem__)
        for name in (*(name for name in of_class if name.startswith("c2t")), best):
            ratio = over_best_rival(ways[name]["figures"], ways)
            rows.append((bits, name, f"{speeds[name]:.0f}", interval(ratio)))
    first = next(iter(ways.values()))
    run = first["configuration"]
    note = source(first, f"{run['prompts']} prompts a set, {computed(run)}", BY_PROMPT)
    return table(("weights", "way", "tokens/s", "/ the others' fastest plain"), grouped(rows), note)


def lead(contender: str, threads: int) -> str:
    """Return the speed of a way of c2t over the fastest plain decoding of another program with as many bits."""
    ways = latest(threads)
    return interval(over_best_rival(ways[contender]["figures"], ways))


def row_prices() -> str:
    """Return what a step of 2 to 16 rows costs over a step of one, in %, for every program."""
    measured = lines("forward.jsonl")
    sizes, rows = (2, 4, 8, 16), []
    for line in measured:
        cost = dict(zip(line["figures"]["rows"], map(sum, line["figures"]["milliseconds"]), strict=True))
        prices = ((cost[size] / cost[1] - 1) / (size - 1) for size in sizes)
        rows.append((line["figures"]["way"], f"{cost[1]:.1f}", *(f"{price:.0%}" for price in prices)))
    return table(("way", "a step of 1 row, ms", *(f"to {size} rows" for size in sizes)), rows, source(measured[-1]))
