"""Tables of docs/ngrams.md and docs/results/ngrams.md: what n-grams of the sequence save."""

from pipelines.docs.cells import LENGTHS, interval, lengths, number, table
from pipelines.docs.result_lines import BY_PROMPT, Line, lines, source


def weights() -> str:
    """Return what n-grams save with learned weights: gamma at equal acceptance length over that without n-grams, and
    over that of counts mixed in without learning, at the greatest one that all of them reach."""
    rows: list[tuple[str, ...]] = []
    notes: dict[float, str] = {}  # temperature -> where its lines come from
    for line in lines("gain-trust.jsonl"):
        run = line["configuration"]
        where = f"`{run['draft']}`, {run['set']}, T = {run['temperature']:g}"
        ratios = {(row["rival"], row["tau"]): row for row in line["figures"]["rows"]}
        rivals = run["draft"], f"{run['draft']}+ngrams, best weight"
        tau = max(tau for _, tau in ratios if all(reached(ratios.get((rival, tau))) for rival in rivals))
        first, second = (ratios[rival, tau] for rival in rivals)
        gammas = (first["rival_gamma"], second["rival_gamma"], second["gamma"])
        rows.append(
            (where, *lengths(tau, "g"), *map(number, gammas), *(interval(row["ratio"]) for row in (first, second)))
        )
        notes[run["temperature"]] = by_prompt(line)
    columns = ("draft, texts", *LENGTHS, "gamma", "counts", "learned weights", "learned / none", "learned / counts")
    return table(columns, rows, "\n".join(notes.values()))


def reached(row: Line | None) -> bool:
    """Return True if both sides of a comparison reach its acceptance length."""
    return row is not None and row["ratio"][0] is not None


def most_saved(rival: str) -> str:
    """Return the lowest ratio of learned weights over a rival: "" for no n-grams, "+ngrams, best weight" for counts."""
    return f"{min(_over(rival)):.2f}"


def most_lost(rival: str) -> str:
    """Return the highest ratio of learned weights over a rival."""
    return f"{max(_over(rival)):.2f}"


def _over(rival: str) -> list[float]:
    return [
        row["ratio"][0]
        for line in lines("gain-trust.jsonl")
        for row in line["figures"]["rows"]
        if row["rival"] == line["configuration"]["draft"] + rival and row["ratio"][0] is not None
    ]


def by_prompt(line: Line) -> str:
    """Return the small print of a comparison at equal acceptance length."""
    run = line["configuration"]
    how = f"{line['figures']['prompts']} prompts a set, {run['max_new_tokens']} new tokens"
    return source(line, f"T = {run['temperature']:g}: {how}", BY_PROMPT)
