"""Table of what makes a model of one's own faster, from the lines of `pipelines.bench own-model`."""

from pipelines.docs.cells import interval, table
from pipelines.docs.result_lines import Line, computed, lines, source

NAMES = {
    "copies of the text": "`lookup`",
    "head-30-minutes": "a head, 30 minutes from nothing",
    "head-10-minutes-begun": "a head, 10 minutes from smollm2's",
}


def own_model() -> str:
    """Return the table: each way with its speed over plain decoding, and whether the texts are equal."""
    measured = _of("smollm2-8")
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


def gemma(way: str) -> str:
    """Return the speed of a way for Gemma 3 270M over plain decoding: copies of the text, or its head."""
    [line] = (line for line in _of("gemma-3-270m-q4_k_m.gguf") if line["figures"]["contender"] == way)
    return interval(line["figures"]["against_plain"])


def _of(target: str) -> list[Line]:
    return [line for line in lines("own_model.jsonl") if line["configuration"]["target"] == target]
