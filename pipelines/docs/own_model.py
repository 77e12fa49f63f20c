"""Table of what makes a model of one's own faster, from the lines of `pipelines.bench own-model`."""

from pipelines.docs.cells import interval, table
from pipelines.docs.result_lines import computed, lines, source

NAMES = {
    "copies of the text": "`lookup`",
    "head-30-minutes": "a head, 30 minutes from nothing",
    "head-10-minutes-begun": "a head, 10 minutes from smollm2's",
}


def own_model() -> str:
    """Return the table: each way with its speed over plain decoding, and whether the texts are equal."""
    measured = lines("own_model.jsonl")
    rows = []
    for line in measured:
        figures = line["figures"]
        name = NAMES.get(figures["contender"], figures["contender"])
        same = "yes" if figures["equal_to_plain"] == 1 else f"{figures['equal_to_plain']:.0%}"
        rows.append((name, f"{figures['tokens_per_second']:.0f}", interval(figures["against_plain"]), same))
    run = measured[-1]["configuration"]
    how = f"SmolLM2-135M with 8 % of noise on its weights; {run['prompts']} prompts of {len(run['sets'])} sets, up to "
    how += f"{run['max_new_tokens']} new tokens, T = 0; {computed(run)}"
    return table(("way", "tokens/s", "/ plain", "the text of plain decoding"), rows, source(measured, how))
