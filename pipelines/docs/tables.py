"""Every table and every measured number of README and docs, rendered from the result lines in data/results."""

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from c2t.policies import POLICIES
from c2t.study.interval import Interval
from c2t.study.points import Point, read_points
from pipelines.docs import batches, findings, gpu, heads, papers
from pipelines.docs.result_lines import RESULTS, computed, interval, lines, source, table

MADE = ("classifier", "acceptance", "pace")  # settings made of the pair or by runs: no text gives them


def bench_source(line: dict[str, Any]) -> str:
    """Return where and when a bench was measured, in small print."""
    figures, settings = line["figures"], line["figures"]["settings"]
    told = f"{figures['prompts']} prompts, {settings['max_new_tokens']} new tokens, T = {settings['temperature']:g}"
    return source(line, told)


def constructions() -> str:
    """Return the table of every policy on the embedded pair."""
    (line,) = lines("bench-tiny.jsonl")
    rows = [
        (
            f"`{row['label']}`",
            "yes" if row["exact"] else "no",
            row["rule"],
            f"{row['tau']:.2f}",
            *(f"{row['categories'][name]:.2f}" for name in ("known", "heldout")),
            f"{row['gamma']:.1f}",
            f"{row['draft_passes']:.1f}",
            "" if row["alpha"] is None else f"{row['alpha']:.2f}",
        )
        for row in line["figures"]["rows"]
    ]
    columns = ("policy", "exact", "rule", "tau", "known", "held out", "gamma", "draft passes", "alpha")
    return table(columns, rows, bench_source(line))


@cache
def sweep() -> list[Point]:
    """Return the points of the committed sweep."""
    (points,) = read_points(RESULTS / "tiny-front.jsonl").values()
    return points


def points() -> str:
    """Return the table of every setting of the committed sweep."""
    rows = [
        (f"`{point.label}`", f"{point.tau:.2f}", f"{point.gamma:.1f}", f"{point.total.draft_passes:.1f}")
        for point in sweep()
    ]
    return table(("policy", "tau", "gamma", "draft passes"), rows, sweep_source())


def sweep_source() -> str:
    """Return where and when the committed sweep was measured, in small print."""
    line, *_, last = lines("tiny-front.jsonl")
    run = line["configuration"]
    told = f"{run['prompts']} prompts, {run['max_new_tokens']} new tokens, T = {run['temperature']:g}, draft `eagle`"
    return source(line, told, f"the oracle: {last['hardware']}")


def decoding() -> str:
    """Return the table of speeds: every set where texts are decoded greedily one by one, else all sets together."""
    latest = {of_run(line): line for line in lines("decoding.jsonl")}  # a later run stands for an earlier one
    pooled = {key.texts for key in latest if key.set == "all" and key.texts[:2] != (0, 1)}
    shown = [key for key in sorted(latest, key=lambda key: key.texts) if key.set == "all" or key.texts not in pooled]
    columns = ("texts", "way", "tokens/s", "/ plain", "/ transformers", "/ plain after the first token", "tau", "gamma")
    return table(
        (*columns, "same text"), [speed(latest[key]) for key in shown], origins([latest[key] for key in shown])
    )


def origins(found: Iterable[dict[str, Any]]) -> str:
    """Return where lines of `pipelines.bench decoding` were measured, a line for each commit and machine, and how large
    the runs were."""
    places: dict[str, tuple[dict[str, Any], dict[str, list[str]]]] = {}
    for line in found:
        run, sort = line["configuration"], kind(of_run(line).texts)
        size = f"{run['prompts']} prompts a set, {computed(run)}"
        kinds = places.setdefault(source(line), (line, {}))[1].setdefault(size, [])
        kinds.extend([sort] * (sort not in kinds))
    several, notes = sum(len(sizes) for _, sizes in places.values()) > 1, []
    for line, sizes in places.values():
        told = "; ".join(f"{' and '.join(kinds)}: " * several + size for size, kinds in sizes.items())
        notes.append(source(line, told, "95 % intervals by prompt"))
    return "\n".join(notes)


def decoding_in_brief() -> str:
    """Return the table of speeds of all sets together, where texts are decoded greedily one by one."""
    latest = {of_run(line): line for line in lines("decoding.jsonl")}
    greedy = [key for key in latest if key.texts[:2] == (0, 1) and key.set == "all"]
    shortest = min(key.texts for key in greedy)  # which all rivals have written
    found = [latest[key] for key in greedy if key.texts == shortest]
    rows = []
    for line in found:
        figures = line["figures"]
        ratio, same = interval(Interval(*figures["against_transformers"])), f"{figures['equal_to_plain']:.0%}"
        own = figures["setting"] if "transformers" not in figures["contender"] else ""  # which each set chooses anew
        own = re.sub(r":\S*", "", own)  # the policy's name; docs/speed.md has its settings
        way = figures["contender"] + f" ({own})" * bool(own)
        rows.append((way, f"{figures['tokens_per_second']:.0f}", ratio, same))
    run = found[-1]["configuration"]
    told = f"{run['prompts']} prompts of each of three sets, up to {run['max_new_tokens']} new tokens, T = 0"
    note = source(found[-1], told, computed(run))
    return table(("way to decode", "tokens/s", "/ transformers", "same text"), rows, note)


class Texts(NamedTuple):
    """How a run of `pipelines.bench decoding` wrote its texts."""

    temperature: float
    batch: int
    new_tokens: int


class Run(NamedTuple):
    """Texts, set of prompts and contender of a line of `pipelines.bench decoding`."""

    texts: Texts
    set: str
    contender: str


def kind(texts: Texts) -> str:
    """Return how texts were decoded, as text."""
    drawn = "greedy" if texts.temperature == 0 else f"T = {texts.temperature:g}"
    return drawn + f", batch {texts.batch}" * (texts.batch > 1) + f", up to {texts.new_tokens} tokens"


def speed(line: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a line of `pipelines.bench decoding`."""
    run, figures = of_run(line), line["figures"]
    ratios = ("against_plain", "against_transformers", "decoding_against_plain")
    return (
        f"{run.set}, {kind(run.texts)}",
        run.contender + f" ({figures['setting']})" * bool(figures["setting"]),
        f"{figures['tokens_per_second']:.1f}",
        *(interval(Interval(*figures[ratio])) for ratio in ratios),
        *(f"{figures[count]:.2f}" if count in figures else "" for count in ("tau", "gamma")),
        "" if figures["equal_to_plain"] is None else f"{figures['equal_to_plain']:.0%}",
    )


def of_run(line: dict[str, Any]) -> Run:
    """Return what a line of `pipelines.bench decoding` is of."""
    run, figures = line["configuration"], line["figures"]
    texts = Texts(run["temperature"], run["batch"], run["max_new_tokens"])
    return Run(texts, figures["set"], figures["contender"])


def breakdown() -> str:
    """Return the table of a round's milliseconds by part."""
    found = lines("breakdown.jsonl")
    figures = [line["figures"] for line in found]
    rows = [
        (part, *(f"{one['parts'][part]:.2f} ({one['parts'][part] / one['watched']:.0%})" for one in figures))
        for part in figures[0]["parts"]
    ]
    rows.append(("a round, with clocks", *(f"{one['watched']:.2f}" for one in figures)))
    rows.append(("a round, without", *(f"{one['unwatched']:.2f}" for one in figures)))
    rows.append(("tokens a round", *(f"{one['tau'] + 1:.2f}" for one in figures)))
    run = found[-1]["configuration"]
    told = f"{run['prompts']} prompts, T = {run['temperature']:g}, {computed(run)}"
    return table(("milliseconds", *(f"`{one['policy']}`" for one in figures)), rows, source(found[-1], told))


def forwards() -> str:
    """Return the table of the milliseconds of a target forward by its rows."""
    found = lines("forward.jsonl")
    sizes = zip(found[0]["figures"]["rows"], *(line["figures"]["milliseconds"] for line in found), strict=True)
    rows = [(str(size), *(f"{layers:.1f} + {head:.1f}" for layers, head in ways)) for size, *ways in sizes]
    run = found[-1]["configuration"]
    told = f"{run['prefix']} tokens of prefix, medians of {run['repeats']}, {computed(run)}"
    return table(("rows", *(line["figures"]["way"] for line in found)), rows, source(found[-1], told))


def policies() -> str:
    """Return the table of the policies, with the defaults of their settings."""
    rows = [
        (f"`{name}`", f"`{kind.__name__}`", kind.proposal, "yes" if kind.exact else "no", settings(kind))
        for name, kind in POLICIES.items()
    ]
    return table(("name", "class", "candidates", "exact", "settings"), rows, figures="---|")


def settings(policy: type) -> str:
    """Return a policy's settings with their defaults, as written on the command line."""

    def text(value: Any) -> str:
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(getattr(value, "__name__", value))

    given = [(field.name, field.default) for field in fields(policy) if field.name not in (*MADE, "policy")]
    told = [f"`{name}`" if default is MISSING else f"`{name}={text(default)}`" for name, default in given]
    within = ["`of=POLICY` (last)"] if "policy" in (field.name for field in fields(policy)) else []
    return ", ".join(told + within)


def parallel() -> str:
    """Return what conditioning a parallel draft saves: gamma of each draft's best tree, and ratios at equal tau."""
    fit, trusting = "medusa+fit", ("medusa+ngrams", "medusa+fit+ngrams")
    rivals = ("all on marginals", "medusa+ngrams=16", "medusa+bigrams", "medusa+hydra", "eagle")
    ratios = [(fit, rival) for rival in rivals] + [(draft, "all training-free") for draft in trusting]
    rows, notes = [], {}
    for line in lines("gain-parallel.jsonl"):
        where = f"{line['configuration']['set']}, T = {line['configuration']['temperature']:g}"
        found = {(row["draft"], row["rival"], row["tau"]): row for row in line["figures"]["rows"]}
        for tau in sorted({tau for draft, _, tau in found if draft == fit}):
            there = [found.get((draft, rival, tau)) for draft, rival in ratios]
            if all(row is None or row["ratio"][0] is None for row in there):
                continue
            own = [
                next((row["gamma"] for (name, _, at), row in found.items() if (name, at) == (draft, tau)), None)
                for draft in (fit, *trusting)
            ]
            gammas = [own[0], *(row and row["rival_gamma"] for row in there[: len(rivals)]), *own[1:]]
            shown = ["" if row is None else interval(Interval(*row["ratio"])) for row in there]
            del shown[1]  # the fit over n-grams: one knows the path, the other the text
            rows.append([where, f"{tau:g}", *("" if gamma is None else f"{gamma:.1f}" for gamma in gammas), *shown])
            where, notes[line["configuration"]["temperature"]] = "", by_prompt(line)
    columns = ("texts", "tau", "`+fit`", "marginals", "`+ngrams=16`", "`+bigrams`", "`+hydra`", "`eagle`", "`+ngrams`")
    columns += ("`+fit+ngrams`", "fit / marginals", "fit / bigrams", "fit / hydra", "fit / `eagle`")
    columns += ("n-grams / all training-free", "fit, n-grams / all training-free")
    return table(columns, rows, "\n".join(notes.values()))


def block() -> str:
    """Return what a block drafter verifies at equal tau, conditioned by counts and not."""
    rows, notes = [], {}
    for line in lines("gain-parallel.jsonl"):
        run = line["configuration"]
        where = f"{run['set']}, T = {run['temperature']:g}"
        for row in line["figures"]["rows"]:
            if (row["draft"], row["rival"]) != ("block+bigrams", "block"):
                continue
            gammas = ("" if row[name] is None else f"{row[name]:.1f}" for name in ("rival_gamma", "gamma"))
            rows.append((where, f"{row['tau']:g}", *gammas, interval(Interval(*row["ratio"]))))
            where, notes[run["temperature"]] = "", by_prompt(line)
    return table(("texts", "tau", "`block`", "`block+bigrams`", "ratio"), rows, "\n".join(notes.values()))


def deep() -> str:
    """Return what the learned fit saves behind autoregressive heads: gamma at equal tau over that without it."""
    rows: list[tuple[str, ...]] = []
    runs: dict[str, dict[str, None]] = {}  # their drafts
    for line in lines("gain-deep.jsonl"):
        run = line["configuration"]
        where = f"`{run['draft']}`, {run['set']}, T = {run['temperature']:g}"
        for row in line["figures"]["rows"]:
            if row["ratio"][0] is not None:
                gammas = (f"{row[name]:.1f}" for name in ("rival_gamma", "gamma"))
                rows.append((where, f"{row['tau']:g}", *gammas, interval(Interval(*row["ratio"]))))
                where = ""
                runs.setdefault(by_prompt(line), {})[run["draft"]] = None
    notes = [f"<sub>{', '.join(drafts)}, {note.removeprefix('<sub>')}" for note, drafts in runs.items()]
    return table(("draft, texts", "tau", "gamma", "gamma, `+fit`", "ratio"), rows, "\n".join(notes))


def trust() -> str:
    """Return what n-grams save that are trusted as was learned: gamma at equal tau over that without n-grams, and over
    that of counts mixed in without learning."""
    rows: list[tuple[str, ...]] = []
    notes: dict[float, str] = {}  # temperature -> where its lines come from
    for line in lines("gain-trust.jsonl"):
        run = line["configuration"]
        where = f"`{run['draft']}`, {run['set']}, T = {run['temperature']:g}"
        found = {(row["rival"], row["tau"]): row for row in line["figures"]["rows"]}
        alone, counted = run["draft"], f"{run['draft']}+ngrams, best weight"
        for tau in sorted({tau for _, tau in found}):
            first, second = found.get((alone, tau)), found.get((counted, tau))
            if second is None or second["ratio"][0] is None:
                continue
            gammas = (first and first["rival_gamma"], second["rival_gamma"], second["gamma"])
            cells = ("" if one is None else f"{one:.1f}" for one in gammas)
            ratios = ("" if one is None else interval(Interval(*one["ratio"])) for one in (first, second))
            rows.append((where, f"{tau:g}", *cells, *ratios))
            where, notes[run["temperature"]] = "", by_prompt(line)
    heads = ("draft, texts", "tau", "gamma", "with counts", "learned trust", "over none", "over counts")
    return table(heads, rows, "\n".join(notes.values()))


def by_prompt(line: dict[str, Any]) -> str:
    """Return the small print of a line of `gain parallel` and its kin."""
    run = line["configuration"]
    size = f"{line['figures']['prompts']} prompts a set, {run['max_new_tokens']} new tokens"
    return source(line, f"T = {run['temperature']:g}: {size}", "95 % intervals by prompt")


def served() -> str:
    """Return what conditions learned from served texts: gamma at equal tau over that before, and over each other's."""
    bigrams, fit, eagle = (f"{name}, served" for name in ("medusa+bigrams", "medusa+fit", "eagle+bigrams"))
    ratios = ((bigrams, "medusa+bigrams"), (fit, "medusa+fit"), (fit, bigrams), ("eagle+bigrams", "eagle"))
    ratios += ((eagle, "eagle"),)
    rows, notes = [], {}
    for line in lines("gain-served.jsonl"):
        run = line["configuration"]
        where = f"{run['set']}, T = {run['temperature']:g} ({run['served']} served)"
        found = {(row["draft"], row["rival"], row["tau"]): Interval(*row["ratio"]) for row in line["figures"]["rows"]}
        for tau in sorted({tau for _, _, tau in found}):
            shown = [found.get((*names, tau)) for names in ratios]
            if all(one is None or one.estimate is None for one in shown):
                continue
            rows.append((where, f"{tau:g}", *("" if one is None else interval(one) for one in shown)))
            where = ""
        notes[run["temperature"]] = by_prompt(line)
    columns = ("texts", "tau", "`+bigrams`, served / before", "`+fit`, served / before", "`+fit` / `+bigrams`, served")
    columns += ("`eagle+bigrams` / `eagle`", "the same, served")
    return table(columns, rows, "\n".join(notes.values()))


def parallel_speed() -> str:
    """Return the tokens/s of parallel drafts and of an autoregressive one, each with its fastest tree."""
    found, rows = lines("parallel.jsonl"), []
    for line in found:
        figures = line["figures"]
        counts = (f"{figures[name]:.2f}" for name in ("tau", "gamma", "draft_passes"))
        speed, ratio = f"{figures['tokens_per_second'][0]:.0f}", interval(Interval(*figures["against_plain"]))
        rows.append((f"`{figures['contender']}`", f"`{figures['label']}`", speed, ratio, *counts))
    run = found[-1]["configuration"]
    told = f"{run['prompts']} prompts of each of {len(run['sets'])} sets, {run['max_new_tokens']} new tokens"
    note = source(found[-1], f"{told}, T = {run['temperature']:g}, one at a time; {computed(run)}")
    return table(("draft", "its fastest tree", "tokens/s", "/ plain", "tau", "gamma", "draft passes"), rows, note)


def vllm_acceptance() -> str:
    """Return the table of acceptance estimators of vLLM's adaptive verification, at equal budgets."""
    found, rows, seen = lines("vllm-acceptance.jsonl"), [], set()
    for line in found:
        where = line["configuration"]["pair"]
        for row in line["figures"]["rows"]:
            ours = row["estimator"].startswith("C2T")
            if (where, row["estimator"]) in seen and not ours:
                continue
            seen.add((where, row["estimator"]))
            named = f" `{Path(line['configuration']['classifier']).name}`" * ours
            shares = (f"{share:.3f}" for share in row["accepted_per_verified"])
            rows.append((where, row["estimator"] + named, f"{row['log_loss']:.3f}", *shares))
            if ours:
                ratios = (interval(Interval(*ratio)) for ratio in row["over_warm"])
                rows.append((where, "the same over vLLM's, warm", "", *ratios))
    told = [f"{line['configuration']['pair']}: {line['figures']['prompts']} prompts" for line in found[:2]]
    run = found[0]["configuration"]
    told += [f"{run['max_new_tokens']} new tokens, T = {run['temperature']:g}", f"batches of {run['batch']}"]
    told += [f"chains of {run['length']}", "95 % intervals by prompt"]
    columns = ("pair", "estimator", "log loss", *(f"{budget}" for budget in found[0]["figures"]["budgets"]))
    return table(columns, rows, source(found[-1], *told))


PARTS: dict[str, Callable[[], str]] = {
    "vllm-acceptance": vllm_acceptance,
    "constructions": constructions,
    "points": points,
    "ngrams": findings.ngrams,
    "parallel": parallel,
    "block": block,
    "deep": deep,
    "trust": trust,
    "served": served,
    "parallel-speed": parallel_speed,
    "paper-conclusions": papers.conclusions,
    "calibrated": findings.calibrated,
    "uncalibrated": findings.uncalibrated,
    "learned-trust": findings.learned_trust,
    "path-correction": findings.path_correction,
    "calibrated-paper": partial(findings.calibrated_extent, findings.PAPER),
    "calibrated-conditional": partial(findings.calibrated_extent, findings.CONDITIONAL),
    "text-counts": partial(findings.text_counts, findings.COUNTING),
    "text-counts-without": partial(findings.text_counts, findings.OWN),
    "learned-trust-extent": findings.trust_extent,
    "path-correction-extent": findings.fit_extent,
    "decoding": decoding,
    "decoding-in-brief": decoding_in_brief,
    "batches": batches.batches,
    "budgets": batches.budgets,
    "eagle2-of-sixteen": partial(batches.over_plain, "EAGLE-2", 16),
    "batches-model": batches.batches_by_a_model,
    "breakdown": breakdown,
    "forwards": forwards,
    "ragged": batches.ragged,
    "serving": batches.serving,
    "gpu-texts": gpu.texts,
    "gpu-phases": gpu.phases,
    "policies": policies,
    "pairs-on-the-hub": heads.pairs,
    "other-heads": heads.others,
    "oracle": partial(findings.gain_at, "gain.jsonl", "oracle", 2.0, draft="eagle", temperature=0.4),
    "real-paper": findings.paper_on_eagle,
    "paper-doubled": partial(findings.gain_at, "gain-calibration.jsonl", findings.PAPER, 2.0, scale=2.0),
    "threshold-doubled": partial(findings.gain_at, "gain-calibration.jsonl", findings.RIGHT, 2.0, scale=2.0),
}
