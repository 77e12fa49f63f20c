"""Tables of docs/results/vocabulary.md: a head's reduced vocabulary against the full one, from the lines of
`pipelines.bench vocabulary`."""

from pipelines.bench.vocabulary import FULL
from pipelines.docs import prompt_sets
from pipelines.docs.cells import interval, table
from pipelines.docs.result_lines import BY_PROMPT, Line, lines, source

WAYS = ("reduced", "without the text's", "full")
NAMES = {**prompt_sets.NAMES, "documents": "documents to summarise"}


def measured(key: str) -> list[Line]:
    """Return the figures that have this key: "set" or "ranks"."""
    return [line["figures"] for line in lines("vocabulary.jsonl") if key in line["figures"]]


def by_set() -> str:
    """Return the share of tokens that a vocabulary has, and the acceptance lengths, of every set and language."""
    rows = [
        (
            row["kind"] or NAMES[row["set"]],
            *(f"{row[name]:.0%}" for name in ("in_vocabulary", "in_text")),
            *(f"{length[0]:.2f}" for length in row["acceptance_length"].values()),
            interval(row["over"][FULL]),
        )
        for row in measured("set")
    ]
    run = lines("vocabulary.jsonl")[0]["configuration"]
    how = f"{run['prompts']} prompts a set, {run['max_new_tokens']} new tokens, T = {run['temperature']:g}"
    note = source(lines("vocabulary.jsonl"), how, BY_PROMPT)
    columns = ("new tokens", "in the vocabulary", "others of the text", *WAYS, "reduced / full")
    return table(columns, rows, note)


def by_rank() -> str:
    """Return how many tokens of each band of ranks were drafted."""
    rows = [
        (
            f"{row['ranks'][0]:,} to {row['ranks'][1] - 1:,}",
            *(f"{row[name]:.0%}" for name in ("share", "in_vocabulary", "in_text")),
            *(f"{share:.0%}" for share in row["drafted"].values()),
        )
        for row in measured("ranks")
    ]
    return table(("rank", "of all", "in the vocabulary", "others of the text", *WAYS), rows)


def over_full(name: str) -> str:
    """Return the acceptance length of the reduced vocabulary over that of the full one on a set."""
    (row,) = (row for row in measured("set") if (row["set"], row["kind"]) == (name, ""))
    return interval(row["over"][FULL])
