"""Prompt sets of smollm2, from the questions of its heads: those for validation are for bench, others for harvest.

    python -m pipelines.pair.smollm2.prompts --work FOLDER --data FOLDER

More shards of texts make the sets of invented questions longer; what was in them stays.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors import safe_open
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from c2t.models.target.gguf_target import home, install
from c2t.storage import paths
from pipelines.pair.smollm2.questions import questions
from pipelines.pair.smollm2.shards import HELD, Text
from pipelines.pair.smollm2.texts import QUESTION_TOKENS, encode

COUNTS = {"bench": 40, "harvest": 200}
FOLDERS = {"bench": ".", "harvest": "harvest"}
SOURCES = ("gsm8k", "code", "invented")
ABOUT = """# Prompts of smollm2

For `c2t bench` the files here, for `c2t harvest` those in `harvest/`; JSONL as in Spec-Bench and EAGLE. Made by
`python -m pipelines.pair.smollm2.prompts` from questions of the heads' training. No head has learned from a question of
the bench: they are of the one in {held} for validation (`pipelines.pair.smollm2.shards.HELD`). None is one of the
public bench prompts (MT-bench, HumanEval, GSM8K's test part; see `pipelines/pair/smollm2/questions.py`).

- `gsm8k` ({gsm8k}): GSM8K's training part (openai/grade-school-math, MIT).
- `code` ({code}): heads and docstrings of functions of the standard library of Python {python} (PSF-2.0), with a
  sentence that asks for the body.
- `invented` ({invented}): users' turns that SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0) generated at T = 1.

In brackets: prompts for bench + for harvest.
"""


def held(ids: list[int]) -> bool:
    """Return True if no head learns from the question."""
    nothing = torch.empty(0, 0)
    return Text(torch.tensor(ids), len(ids), nothing, nothing, "", 0.0).held


def invented(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Yield the turns that the target invented for the shards of a folder, in the order of the shards."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            if file.metadata()["source"] != "invented":
                continue
            texts = file.get_tensor("ids").int().split(file.get_tensor("lengths").tolist())
            lengths = file.get_tensor("questions").tolist()
        for text, length in zip(texts, lengths, strict=True):
            question = tokenizer.decode(text[:length])
            turn = question.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
            if encode(tokenizer, turn) == text[:length].tolist():
                yield turn


def sets(turns: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[str]]:
    """Return the first turns of each purpose, each turn once."""
    chosen: dict[str, list[str]] = {purpose: [] for purpose in COUNTS}
    for turn in dict.fromkeys(turns):
        ids = encode(tokenizer, turn)
        purpose = "bench" if held(ids) else "harvest"
        if len(ids) <= QUESTION_TOKENS and len(chosen[purpose]) < COUNTS[purpose]:
            chosen[purpose].append(turn)
    return chosen


def write(source: str, chosen: dict[str, list[str]], out: Path) -> None:
    for purpose, turns in chosen.items():
        lines = [{"question_id": i, "category": source, "turns": [turn]} for i, turn in enumerate(turns)]
        path = out / FOLDERS[purpose] / f"{source}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main(
    work: Annotated[Path, typer.Option(help="Folder of the pair's texts.")],
    data: Annotated[Path, typer.Option(help="Folder of train/ and of the bench prompts.")],
    out: Annotated[Path, typer.Option(help="Folder of the prompt files.")] = paths.root() / "data/prompts/smollm2",
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(install(home()), trust_remote_code=False)
    pools, _, _ = questions(data)
    counts = {}
    for source in SOURCES:
        turns = invented(work / "texts", tokenizer) if source == "invented" else pools[source]
        chosen = sets(turns, tokenizer)
        write(source, chosen, out)
        counts[source] = " + ".join(str(len(chosen[purpose])) for purpose in COUNTS)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (out / "README.md").write_text(ABOUT.format(held=HELD, python=python, **counts))
    print(counts)


if __name__ == "__main__":
    typer.run(main)
