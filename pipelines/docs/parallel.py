"""Tables of docs/parallel.md and docs/results/parallel.md: drafts that give all positions in one forward."""

from pipelines.docs.cells import LENGTHS, extent, grouped, interval, lengths, number, table
from pipelines.docs.ngrams import by_prompt
from pipelines.docs.result_lines import Line, computed, lines, source

FIT, BOTH = "medusa+fit", "medusa+fit+ngrams"
MARGINALS, UNTRAINED = "all on marginals", "all training-free"
SHOWN_TAUS = (0.8, 1.0, 1.4, 1.8, 2.2)
IN_BRIEF = ("plain", "eagle", "eagle+ngrams", "medusa", "medusa+ngrams", FIT)


def conditioned() -> str:
    """Return what conditioning a parallel draft on the path saves on greedy texts: gammas and ratios at equal
    acceptance length."""
    greedy = [line for line in lines("gain-parallel.jsonl") if line["configuration"]["temperature"] == 0]
    rows = []
    for line in greedy:
        where = line["configuration"]["set"]
        by_rival = {(row["draft"], row["rival"], row["tau"]): row for row in line["figures"]["rows"]}
        for tau in SHOWN_TAUS:
            fitted = [by_rival.get((FIT, rival, tau)) for rival in (MARGINALS, "medusa+bigrams", "eagle")]
            both = by_rival.get((BOTH, UNTRAINED, tau))
            ratios = [interval(row and row["ratio"]) for row in (*fitted, both)]
            if not any(ratios):
                continue
            gammas = [row and row["rival_gamma"] for row in fitted]
            gammas += [_gamma(by_rival, name, tau) for name in (FIT, BOTH)]
            rows.append((where, *lengths(tau, "g"), *map(number, gammas), *ratios))
    columns = ("texts", *LENGTHS, "marginals", "`+bigrams`", "`eagle`", "`+fit`", "`+fit+ngrams`")
    columns += ("fit / marginals", "fit / bigrams", "fit / `eagle`", "fit, n-grams / all untrained")
    return table(columns, grouped(rows), by_prompt(greedy[-1]))


def _gamma(by_rival: dict[tuple[str, str, float], Line], draft: str, tau: float) -> float | None:
    return next((row["gamma"] for (name, _, at), row in by_rival.items() if (name, at) == (draft, tau)), None)


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
        counts = (*lengths(figures["tau"]), f"{figures['gamma']:.1f}", f"{figures['draft_passes']:.1f}")
        rate, ratio = f"{figures['tokens_per_second'][0]:.0f}", interval(figures["against_plain"])
        tree = (f"`{figures['label']}`",) if trees else ()
        rows.append((f"`{figures['contender']}`", *tree, rate, ratio, *counts))
    run = shown[-1]["configuration"]
    how = f"{run['prompts']} prompts of each of {len(run['sets'])} sets, {run['max_new_tokens']} new tokens"
    note = source(shown[-1], f"{how}, T = {run['temperature']:g}, one at a time; {computed(run)}")
    named = ("draft", *(("its fastest tree",) if trees else ()))
    return table((*named, "tokens/s", "/ plain", *LENGTHS, "gamma", "draft passes"), rows, note)
