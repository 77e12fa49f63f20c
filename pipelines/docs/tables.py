"""Every rendered part of README, docs and integrations/, by its name."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from c2t.policies import POLICIES
from c2t.policies.spec import OF, settings_of
from pipelines.docs import (
    batches,
    chains,
    constructions,
    findings,
    gpu,
    grammar,
    heads,
    lengths,
    long_texts,
    ngrams,
    noise,
    own_model,
    papers,
    parallel,
    parity,
    platforms,
    prompt_sets,
    rivals,
    speed,
    vocabulary,
)
from pipelines.docs.cells import interval, table
from pipelines.docs.result_lines import BY_PROMPT, lines, source

# Policies that draft no level by what the last held.
FIXED = ("plain", "chain", "confidence-chain", "dymax", "dyjoint", "eagle1", "static")


def policies(kind: str) -> str:
    """Return the table of the policies of a kind ("fixed", "grown", "sampled", "wrapping"), with the defaults of their
    settings."""
    registered: dict[str, Any] = POLICIES
    rows = [
        (f"`{name}`", f"`{policy.__name__}`", "" if policy.exact else "not exact", settings(policy))
        for name, policy in registered.items()
        if kind_of_policy(name, policy) == kind
    ]
    return table(("name", "class", "", "settings"), rows, figures="---|")


def kind_of_policy(name: str, policy: Any) -> str:
    """Return which table a policy stands in."""
    if "policy" in (field.name for field in fields(policy)):
        return "wrapping"
    if policy.proposal != "ranked":
        return "sampled"
    return "fixed" if name in FIXED else "grown"


def settings(policy: type) -> str:
    """Return a policy's settings with their defaults, as written on the command line."""
    return ", ".join(f"`{text}`" + " (last)" * text.startswith(OF) for text in settings_of(policy))


def vllm_acceptance() -> str:
    """Return the table of acceptance estimators of vLLM's adaptive verification, at equal budgets."""
    measured, rows, seen = lines("vllm-acceptance.jsonl"), [], set()
    for line in measured:
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
                ratios = (interval(ratio) for ratio in row["over_warm"])
                rows.append((where, "the same over vLLM's, warm", "", *ratios))
    how = [f"{line['configuration']['pair']}: {line['figures']['prompts']} prompts" for line in measured[:2]]
    run = measured[0]["configuration"]
    how += [f"{run['max_new_tokens']} new tokens, T = {run['temperature']:g}", f"batches of {run['batch']}"]
    how += [f"chains of {run['length']}", BY_PROMPT]
    columns = ("pair", "estimator", "log loss", *map(str, measured[0]["figures"]["budgets"]))
    return table(columns, rows, source(measured[-1], *how))


COUNTED = "+ngrams, best weight"

PARTS: dict[str, Callable[[], str]] = {
    **{f"policies-{kind}": partial(policies, kind) for kind in ("fixed", "grown", "sampled", "wrapping")},
    "platforms": platforms.machines,
    "families": platforms.targets,
    "pairs-1": partial(heads.pairs, 1),
    "pairs-3": partial(heads.pairs, 3),
    "heads-llama": partial(heads.others, "Llama|Qwen2"),
    "heads-qwen3": partial(heads.others, r"Qwen3-\d+B(,|$)"),
    "heads-moe": partial(heads.others, r"Qwen3-(30B-A3B|Coder)|gpt-oss"),
    "vllm-acceptance": vllm_acceptance,
    "own-model": own_model.own_model,
    "own-model-gemma-lookup": partial(own_model.gemma, "copies of the text"),
    "own-model-gemma-head": partial(own_model.gemma, "head3"),
    "grammar": grammar.grammar,
    "grammar-texts": grammar.texts,
    "grammar-ended": grammar.ended,
    "grammar-valid": grammar.valid,
    "grammar-same": grammar.same,
    "grammar-verified": grammar.verified,
    "grammar-kinds": grammar.kinds,
    "grammar-fastest": grammar.fastest,
    "own-speed": prompt_sets.own_speed,
    "same-text": prompt_sets.same_text,
    "speed-by-texts": prompt_sets.by_texts,
    "decoding": speed.decoding,
    "decoding-settings": speed.settings,
    "breakdown": speed.breakdown,
    "long-texts": long_texts.long_texts,
    "lengths": lengths.origin,
    "rivals": rivals.rivals,
    "rivals-in-brief": rivals.in_brief,
    "int4-lead": partial(rivals.lead, "c2t in int4, plain"),
    "int4-tree-lead": partial(rivals.lead, "c2t in int4, tree"),
    "int4-lead-epyc": partial(rivals.lead, "c2t in int4, plain", elsewhere=True),
    "int4-tree-lead-epyc": partial(rivals.lead, "c2t in int4, tree", elsewhere=True),
    "row-prices": rivals.row_prices,
    "llama-bench": rivals.llama_bench,
    "batches": batches.batches,
    "budgets": batches.budgets,
    "eagle2-of-32": partial(batches.over_plain, "EAGLE-2", 32),
    "serving": batches.serving,
    "gpu-texts": gpu.texts,
    "gpu-phases": gpu.phases,
    "noise": noise.noise,
    "noise-over-unaware": partial(noise.lead, noise.UNAWARE),
    "noise-over-residual": partial(noise.lead, noise.RESIDUAL),
    "vocabulary": vocabulary.by_set,
    "vocabulary-over-full": partial(vocabulary.over_full, "mt_bench"),
    "vocabulary-languages": partial(vocabulary.over_full, "languages"),
    "vocabulary-ranks": vocabulary.by_rank,
    "parity-nodes": parity.nodes,
    "parity-modules": parity.modules,
    "constructions": constructions.constructions,
    "points": constructions.points,
    "paper-verdicts": papers.verdicts,
    "paper-conclusions": papers.conclusions,
    "parallel-speed": parallel.speed,
    "parallel-speed-in-brief": parallel.speed_in_brief,
    "chains": partial(chains.rules, 0.0),
    "chains-sampled": partial(chains.rules, 1.0),
    "tree-over-chain": partial(chains.over_chain, "tree, by C2T's network", 0.0),
    "sampled-tree-over-chain": partial(chains.over_chain, "tree, by C2T's network", 1.0),
    "tree-tokens-over-chain": partial(
        chains.tokens_over_chain, "tree, best first, most profitable size", "chain, by confidence"
    ),
    "fit-marginals": partial(parallel.span, parallel.FIT, parallel.MARGINALS, 0.0),
    "fit-eagle": partial(parallel.span, parallel.FIT, "eagle", 0.0),
    "fit-after-eagle": partial(parallel.span_after, "eagle"),
    "fit-after-eagle3": partial(parallel.span_after, "eagle3"),
    "fit-after-mtp": partial(parallel.span_after, "mtp"),
    "ngram-weights": ngrams.weights,
    "weights-least-none": partial(ngrams.most_saved, ""),
    "weights-most-none": partial(ngrams.most_lost, ""),
    "weights-least-counts": partial(ngrams.most_saved, COUNTED),
    "weights-most-counts": partial(ngrams.most_lost, COUNTED),
    "calibrated": findings.calibrated,
    "uncalibrated": findings.uncalibrated,
    "calibrated-paper": partial(findings.calibrated_extent, findings.PAPER),
    "calibrated-conditional": partial(findings.calibrated_extent, findings.CONDITIONAL),
    "text-counts": partial(findings.text_counts, findings.COUNTING),
    "text-counts-without": partial(findings.text_counts, findings.OWN),
    "learned-trust-extent": findings.trust_extent,
    "path-correction-extent": findings.fit_extent,
    "oracle": partial(findings.gain_at, "gain.jsonl", "oracle", 2.0, draft="eagle", temperature=0.4),
    "real-paper": findings.paper_on_eagle,
    "paper-doubled": partial(findings.gain_at, "gain-calibration.jsonl", findings.PAPER, 2.0, scale=2.0),
    "threshold-doubled": partial(findings.gain_at, "gain-calibration.jsonl", findings.RIGHT, 2.0, scale=2.0),
}
