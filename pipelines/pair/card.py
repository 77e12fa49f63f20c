"""Model card, provenance and loss curves of the embedded pair, from the records and logs of the stages."""

import csv
import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from c2t.output import plot_style
from pipelines.pair import corpus
from pipelines.pair.report import table

MODELS = {
    "target": "`LlamaForCausalLM`, 8 layers of 256, byte-level BPE of 8192 tokens, untied head",
    "draft": "EAGLE-1/2 head, upstream's loss: 1.0 SmoothL1 on features + 0.1 soft cross-entropy",
    "draft_medusa": "Medusa-style: `draft` for the first depth, 2 residual blocks for the next two, in one forward",
    "draft_lm": "independent Llama, 2 layers of 128, tied head, the target's tokenizer",
}
AGREEMENT = 0.7  # share of equal most probable tokens that was wanted of `eagle`
LOSSES = ("loss", "heldout_loss", "agreement")
COMMAND = "python -m pipelines.pair tiny"

CARD = """---
license: apache-2.0
library_name: c2t
language: [en, code]
tags: [speculative-decoding, eagle, c2t]
---
# tiny: the embedded pair

A small target with drafts of known quality, so that every command of c2t runs on two CPU cores without a
download. It is a test bed for token trees, not a useful language model: it has memorised its training text, as a
chat model knows its own style, and little else.

| folder | what | parameters | training |
| --- | --- | --- | --- |
{models}
| `classifier/` | C2T's network of joint probability, entropy and depth, 48 hidden units, for `draft/` | 241 | below |

Commit f756872 has three more heads, which no default and no test needs (a distilled one, EAGLE-3 and MTP); commit
5cd21cd has their recipes.

Weights are bf16; heads are stored without `embed_tokens`, which is the target's. Everything in `provenance.json` and
below comes from `{command}`, stage by stage; a figure's stage is named with it.

`classifier/` comes from `c2t harvest --pair tiny --limit 400 --max-new-tokens 96` and
`python -m pipelines.pair.classifier tiny`: 400 prompts of `data/prompts/tiny/harvest`, text at T = 0.4, seed 0, full
EAGLE-2 trees (K = 10, 11 levels, M = 1000); 20 negatives per positive, lr 0.01, otherwise the defaults (10 epochs,
batches of 1024, at least 2000 steps, seed 0); beta by the rule in the pipeline. Its own files name neither temperature,
seed nor harvest: these are the recipe's, and the harvest was not stored.

## Data (`--stage corpus`, `--stage tokenizer`)

Functions (`code`), paragraphs of docstrings and comments (`prose`) and interactive examples (`doctest`) of the Python
standard library and of installed packages, frozen to `data/corpus/tiny.jsonl.xz`
(sha256 `{sha256}`).
{trained_tokens:,} tokens are trained on; {heldout_tokens:,} come from files that are left out entirely.

| package | version | licence |
| --- | --- | --- |
{sources}

Their licences are in `data/corpus/NOTICES.txt`.

Documents by domain and split; a source file belongs to one split. Prompts of category `known` begin a document of
`bench_known` or `harvest_known`, prompts of category `heldout` one that the models have never seen.

| domain | {splits} |
| --- | {rule} |
{documents}

## Training (`--stage target`, `draft`, `draft_medusa`, `draft_lm`)

{pictures}

{losses}

The heads learn from the corpus and from {written_tokens:,} tokens that the target wrote at T = 0.4, 0.8 and 1.0
(`--stage texts`), none of them begun with a file that prompts come from. Losses are means over 50 steps (heads: 100).
`agreement` here is on rows held back from the text at T = 1.0, the hardest; that of `draft_medusa`, which learns its
blocks alone, is of the token after the next one. `heldout loss` is that of one batch of
left-out files (`draft_lm`: of held-back text of the target), a different one each time, which is why it jumps.

## Regime (`--stage report`)

Up to {texts} prompts of `data/prompts/tiny` for each line, 96 new tokens; `eagle` is `draft/`, `lm` is `draft_lm/`.
`T`: temperature of the text. `entropy`: mean full-vocabulary entropy, in nats, of the target's distribution at T = 0.8
over the generated positions. `looping`: share of texts that end in a loop. `agreement`: share of generated positions
where draft and target have the same most probable token. `tau`: drafted tokens accepted per round by EAGLE-2 (K = 10,
6 levels, N = 60), bonus not counted.

{report}

{aim}

`c2t bench` measures tau, gamma and speed for other policies.

## Limits

Text at T = 0 loops; loops are easy to draft and flatter every tree, so comparisons belong at T = 0.4 and 0.8, with the
share of looping text next to them. Text of left-out files is harder for the target than its training text, and prose
is harder for the drafts than code and examples. The trainings had a time limit (`minutes` in `provenance.json`;
schedules follow it) and were resumed, so building the pair again gives one of the same kind, not the same weights.
"""


def records(build: Path) -> dict[str, Any]:
    """Return the records of the stages by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(build.glob("*.json")) if path.stem != "card"}


def log(folder: Path) -> list[dict[str, float]]:
    """Return a run's log, a line per step, empty if there is none. The steps that a resumed run did again replace the
    first ones."""
    if not (folder / "log.csv").exists():
        return []
    with (folder / "log.csv").open() as file:
        lines = [{key: float(value) for key, value in line.items() if value} for line in csv.DictReader(file)]
    return sorted({line["step"]: line for line in lines}.values(), key=lambda line: line["step"])


def plot_losses(lines: list[dict[str, float]], title: str, path: Path) -> None:
    """Plot a run's losses over its steps."""
    with plot_style.style():
        figure = Figure(figsize=(3.5, 3), layout="constrained")
        axis = figure.subplots()
        for key in (key for key in LOSSES if key in lines[0]):
            steps, losses = ([line[name] for line in lines] for name in ("step", key))
            axis.plot(steps, losses, marker="", label=key.replace("_", " "))
        axis.set(title=title, xlabel="step")
        axis.legend()
        plot_style.save(figure, path, dpi=90)


def models(stages: dict[str, Any]) -> str:
    """Return the card's table of models."""
    rows = []
    for name, what in MODELS.items():
        parameters, steps, minutes = (stages[name][key] for key in ("parameters", "steps", "seconds"))
        rows.append(f"| `{name}/` | {what} | {parameters:,} | {steps:,} steps, {minutes / 60:.0f} min |")
    return "\n".join(rows)


def last_losses(stages: dict[str, Any]) -> str:
    """Return the card's list of last losses."""
    lines = {name: {key: v for key, v in stages[name]["last"].items() if key in LOSSES} for name in MODELS}
    return "\n".join(
        f"- `{name}`, last steps: " + ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in line.items())
        for name, line in lines.items()
    )


def aim(lines: list[dict[str, Any]]) -> str:
    """Return a sentence on the domains in which `eagle` agrees with the target as often as was wanted."""
    in_domain = {line["domain"]: line for line in lines if line["category"] == "known" and line["T"] == 0.4}
    shares = {domain: line["agreement eagle"] for domain, line in in_domain.items()}
    reached = [domain for domain, share in shares.items() if share >= AGREEMENT]
    figures = ", ".join(f"{domain} {share:.2f}" for domain, share in shares.items())
    where = f"on {' and '.join(reached)} only" if len(reached) < len(shares) else "everywhere"
    text = (
        f"The aim of {AGREEMENT:.0%} agreement is reached {where if reached else 'nowhere'} (known, T = 0.4, "
        f"`eagle`: {figures}); those for tau (a floor) and for entropy are met."
    )
    return textwrap.fill(text, 120)


def document_counts(path: Path) -> dict[str, str]:
    """Return the card's table of documents by domain and split."""
    counts = Counter((d.domain, d.split) for d in corpus.load(path))
    splits = [split for split, _ in corpus.SPLITS]
    rows = [f"| {domain} | " + " | ".join(str(counts[domain, s]) for s in splits) + " |" for domain in corpus.QUOTA]
    return {"splits": " | ".join(splits), "rule": " | ".join("---" for _ in splits), "documents": "\n".join(rows)}


def write_card(out: Path, build: Path, corpus_path: Path) -> dict[str, Any]:
    """Write the model card, its pictures and provenance.json."""
    stages = records(build)
    sources = json.loads(corpus_path.with_name("sources.json").read_text())
    provenance = {**stages, "sources": sources}
    (out / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    (out / "losses").mkdir(exist_ok=True)
    for name in MODELS:
        if lines_of := log(build / name):  # where there is no log, the picture stays
            plot_losses(lines_of, name, out / "losses" / f"{name}.png")
    lines = stages["report"]["lines"]
    tokens = stages["tokenizer"]["tokens"]
    card = CARD.format(
        **document_counts(corpus_path),
        models=models(stages),
        command=COMMAND,
        sha256=stages["corpus"]["sha256"],
        trained_tokens=tokens["trained"],
        heldout_tokens=tokens["heldout"],
        sources="\n".join(f"| {s['name']} | {s['version']} | {s['licence']} |" for s in sources),
        pictures="\n".join(f"![Losses of {name}](losses/{name}.png)" for name in MODELS),
        losses=last_losses(stages),
        written_tokens=stages["texts"]["written_tokens"],
        texts=max(line["texts"] for line in lines),
        report=table(lines),
        aim=aim(lines),
    )
    (out / "README.md").write_text(card)
    return {"card": "checkpoints/tiny/README.md"}
