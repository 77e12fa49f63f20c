"""Questions for smollm2's answers, of three sources, without those of the bench prompts.

A fourth source is the model itself (`texts.invent`). Bench prompts are left out by normalised text: a question goes
that holds a bench prompt, is part of one, or shares a run of RUN words with one.
"""

import ast
import json
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

RUN = 10  # words
BENCH = ("mt_bench", "humaneval", "gsm8k")
DOCSTRING = (80, 900)  # characters
PHRASES = (  # in turn; HumanEval's prompts in Spec-Bench's form say "Complete the code I provided."
    "Complete this Python function.",
    "Write the body of this function:",
    "Finish the following code.",
    "Implement the function below in Python, and explain it in short.",
)
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "__pycache__"}


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


def code_tasks() -> list[str]:
    """Return tasks to write a function, from signatures and docstrings of the Python standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    heads = []
    for path in sorted(library.rglob("*.py")):
        if SKIPPED.isdisjoint(path.relative_to(library).parts):
            heads += functions(path)
    unique = sorted(set(heads))
    return [f"{PHRASES[index % len(PHRASES)]}\n\n{text}" for index, text in enumerate(unique)]


def functions(path: Path) -> list[str]:
    """Return head and docstring of each function of a file that has a docstring of a fitting length."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError):
        return []
    heads = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            continue
        docstring = ast.get_docstring(node)
        if docstring is None or not DOCSTRING[0] <= len(docstring) <= DOCSTRING[1]:
            continue
        indented = "\n".join(f"    {line}".rstrip() for line in docstring.splitlines())
        heads.append(f'def {node.name}({ast.unparse(node.args)}):\n    """{indented.strip()}\n    """\n')
    return heads


def questions(data: Path) -> tuple[dict[str, list[str]], dict[str, int], BenchFilter]:
    """Return the questions by source, shuffled; how many the bench excludes; and the filter for further ones.

    data: folder with `train/`, and `mt_bench/`, `humaneval/` and `gsm8k/` of the bench.
    """
    bench = [turn for name in BENCH for turn in first_turns(data / name / "question.jsonl", every_turn=True)]
    allowed = BenchFilter(bench)
    sources = {
        "gsm8k": first_turns(data / "train" / "gsm8k_train.jsonl"),
        "code": code_tasks(),
        "instructions": first_turns(data / "train" / "self_instruct.jsonl"),
    }
    remaining = {name: [text for text in texts if text in allowed] for name, texts in sources.items()}
    gone = {name: len(sources[name]) - len(texts) for name, texts in remaining.items()}
    for name, texts in remaining.items():
        random.Random(name).shuffle(texts)
    return remaining, gone, allowed
