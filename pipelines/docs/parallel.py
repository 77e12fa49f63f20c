"""Tables of docs/parallel.md and docs/results/parallel.md: drafts that give all positions in one forward."""

from pipelines.docs.cells import LENGTH, extent, interval, length, table
from pipelines.docs.result_lines import Line, computed, lines, source

FIT, MARGINALS = "medusa+fit", "all on marginals"
IN_BRIEF = ("plain", "eagle", "eagle+ngrams", "medusa", "medusa+ngrams", FIT)


def span(draft: str, rival: str, temperature: float) -> str:
    """Return the lowest and the highest ratio of a draft over a rival, at every tau of every set."""
    return extent(
        row["ratio"][0]
        for line in lines("gain-parallel.jsonl")
        for row in line["figures"]["rows"]
        if (row["draft"], row["rival"]) == (draft, rival) and line["configuration"]["temperature"] == temperature
    )


def span_after(draft: str) -> str:
    """Return the lowest and the highest ratio of an autoregressive head with `+fit` over that head alone."""
    deep = [line for line in lines("gain-deep.jsonl") if line["configuration"]["draft"] == draft]
    return extent(row["ratio"][0] for line in deep for row in line["figures"]["rows"])


def speed() -> str:
    """Return the tokens/s of every draft that comes with c2t, with its fastest tree."""
    with_weights = [line for line in lines("parallel.jsonl") if not line["figures"]["contender"].startswith("block")]
    return _speed(with_weights, trees=True)


def speed_in_brief() -> str:
    """Return the tokens/s of the drafts whose weights come with c2t."""
    return _speed([line for line in lines("parallel.jsonl") if line["figures"]["contender"] in IN_BRIEF], trees=False)


def _speed(shown: list[Line], trees: bool) -> str:
    rows = []
    for line in shown:
        figures = line["figures"]
        counts = (length(figures["tau"]), f"{figures['gamma']:.1f}", f"{figures['draft_passes']:.1f}")
        rate, ratio = f"{figures['tokens_per_second'][0]:.0f}", interval(figures["against_plain"])
        tree = (f"`{figures['label']}`",) if trees else ()
        rows.append((f"`{figures['contender']}`", *tree, rate, ratio, *counts))
    run = shown[-1]["configuration"]
    how = f"{run['prompts']} prompts of each of {len(run['sets'])} sets, {run['max_new_tokens']} new tokens"
    note = source(shown[-1], f"{how}, T = {run['temperature']:g}, one at a time; {computed(run)}")
    named = ("draft", *(("its fastest tree",) if trees else ()))
    return table((*named, "tokens/s", "/ plain", LENGTH, "gamma", "draft passes"), rows, note)
