"""Questions for smollm2's answers, of three sources, without those of the bench prompts.

A fourth source is the model itself. Bench prompts, those of `data/prompts/smollm2` among them, are left out by
normalised text: a question goes that holds a bench prompt, is part of one, or shares a run of RUN words with one.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from c2t.drafting.questions import tasks
from c2t.storage.paths import prompts_of

RUN = 10  # words
BENCH = ("mt_bench", "humaneval", "gsm8k")


def words(text: str) -> list[str]:
    """Return the text's words and numbers in lower case, without punctuation."""
    return re.findall(r"[a-z0-9]+", text.lower())


class BenchFilter:
    """Container of all questions that do not share their text with a bench prompt."""

    def __init__(self, bench: Iterable[str]):
        listed = [words(text) for text in bench]
        self.whole = [f" {' '.join(text)} " for text in listed]
        self.runs = {run for text in listed for run in runs_of(text)}

    def __contains__(self, question: str) -> bool:
        text = words(question)
        if not text or not self.runs.isdisjoint(runs_of(text)):
            return False
        joined = f" {' '.join(text)} "
        return not any(joined in prompt or prompt in joined for prompt in self.whole)


def runs_of(text: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(text[start : start + RUN]) for start in range(len(text) - RUN + 1))


def first_turns(path: Path, every_turn: bool = False) -> list[str]:
    """Return the first turn of each prompt of a JSONL file in Spec-Bench's form, or all turns."""
    turns = [json.loads(line)["turns"] for line in path.read_text().splitlines() if line]
    return [turn for prompt in turns for turn in (prompt if every_turn else prompt[:1])]


def questions(data: Path) -> tuple[dict[str, list[str]], BenchFilter]:
    """Return the questions by source, and the filter for further ones.

    data: folder with `train/`, and `mt_bench/`, `humaneval/` and `gsm8k/` of the bench.
    """
    files = [*(data / name / "question.jsonl" for name in BENCH), *prompts_of("smollm2", "bench")]
    allowed = BenchFilter(turn for file in files for turn in first_turns(file, every_turn=True))
    sources = {
        "gsm8k": first_turns(data / "train" / "gsm8k_train.jsonl"),
        "code": tasks(),
        "instructions": first_turns(data / "train" / "self_instruct.jsonl"),
    }
    return {name: [text for text in texts if text in allowed] for name, texts in sources.items()}, allowed
