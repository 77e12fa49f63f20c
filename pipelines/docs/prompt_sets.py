"""Tables of smollm2's trees by set of prompts, by `pipelines.bench decoding --sets`."""

from pipelines.bench.contenders import HIERARCHICAL, PLAIN, TREE
from pipelines.bench.decoding import ALL
from pipelines.bench.prompt_sets.sets import FOLDERS
from pipelines.docs.cells import interval, length, table
from pipelines.docs.result_lines import BY_PROMPT, Line, computed, lines, source
from pipelines.docs.speed import SETS, kind, origins, runs

NAMES = {
    **{name: SETS[name] for name in FOLDERS},
    "problems": "problems of mathematics",
    "functions": "Python functions",
    ALL: "these five",
    "languages": "ten languages",
}
WAYS = {  # what the README calls them
    "c2t, plain": "plain decoding",
    "c2t, tree": "tree: a threshold, with n-grams of the text",
    "c2t, hierarchical": "self-speculation with int4 weights on top",
    "c2t in int8, tree": "tree, target in int8 (over int8 plain decoding)",
}


def by_set() -> dict[str, dict[str, Line]]:
    """Return the lines by set and way."""
    ways: dict[str, dict[str, Line]] = {}
    for line in lines("sets.jsonl"):
        ways.setdefault(line["figures"]["set"], {})[line["figures"]["contender"]] = line
    return ways


def own_speed() -> str:
    """Return the tokens/s of c2t's ways over its own plain decoding in the same arithmetic, five sets together."""
    ways, rows = by_set()[ALL], []
    sets = ", ".join(list(NAMES.values())[: list(NAMES).index(ALL)])
    for contender, way in WAYS.items():
        figures = ways[contender]["figures"]
        assert figures["equal_to_plain"] == 1, "the page says that no text differs"
        rows.append((way, f"{figures['tokens_per_second']:.0f}", interval(figures["against_plain"])))
    return table(("way to decode", "tokens/s", "speed over plain decoding"), rows, origin(f"SmolLM2-135M; {sets}"))


def same_text() -> str:
    """Return the share of c2t's texts that equal plain decoding's of the same weights, token for token."""
    return f"{min(line['figures']['equal_to_plain'] for ways in by_set().values() for line in ways.values()):.0%}"


def by_texts() -> str:
    """Return the trees' speeds over plain decoding by set and by kind of text."""
    shown = {name: by_set()[key] for key, name in NAMES.items()}
    measured = {run: line for run, line in runs().items() if run.set == ALL and run.texts.batch == 1}
    for run, line in measured.items():
        if run.texts != min(of.texts for of in measured):
            shown.setdefault(f"{SETS[ALL]}, {kind(run.texts)}", {})[run.contender] = line
    rows = []
    for name, ways in shown.items():
        tree, hierarchical = (ways.get(way, {}).get("figures", {}) for way in (TREE, HIERARCHICAL))
        ratios = (interval(figures.get("against_plain")) for figures in (tree, hierarchical))
        rows.append((name, length(tree["tau"]), *ratios))
    columns = ("prompts", "acceptance length", "tree / plain", "hierarchical / plain")
    return table(columns, rows, origins(ways[TREE] for name, ways in shown.items() if name not in NAMES.values()))


def origin(*more: str) -> str:
    """Return where the lines were measured, in small print."""
    line = by_set()[ALL][PLAIN]
    run = line["configuration"]
    how = f"{run['prompts']} prompts a set, up to {run['max_new_tokens']} new tokens, T = {run['temperature']:g}"
    return source(line, *more, how, computed(run), BY_PROMPT)
