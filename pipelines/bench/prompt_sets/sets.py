"""Sets of prompts by name: three of EAGLE's, read from a folder, and four that are made here.

`functions` are in the manner of MBPP and `problems` in that of MATH-500, but they are not those sets: every task is
written here, without data files. `documents` are pages of Python's reference to summarise, and `languages` are tasks in
languages other than English.

They have the form of SPEED-Bench (arXiv 2604.09557): a set is its `category`, a kind its `sub_category`. Its throughput
splits, by the prompts' length, are the prompts of `pipelines.bench long` and `lengths`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from c2t.errors import InputError
from c2t.replay.prompts import Prompt, read_prompts
from pipelines.bench.prompt_sets.documents import documents
from pipelines.bench.prompt_sets.functions import functions
from pipelines.bench.prompt_sets.languages import languages
from pipelines.bench.prompt_sets.problems import problems

FOLDERS = ("gsm8k", "humaneval", "mt_bench")
# Each returns a kind and a task for every prompt.
MADE: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "functions": functions,
    "problems": problems,
    "documents": documents,
    "languages": languages,
}
NAMES = (*FOLDERS, *MADE)


def made(name: str) -> list[Prompt]:
    """Return a set that is made here, with the kinds of its tasks as categories."""
    return [Prompt(number, kind, [task], name) for number, (kind, task) in enumerate(MADE[name]())]


def prompt_sets(names: Sequence[str], folder: Path | None) -> dict[str, list[Prompt]]:
    """Return sets by their names.

    folder: has SET/question.jsonl for each of EAGLE's. InputError for a name that is no set, and without the folder for
    a set of EAGLE's.
    """
    for name in names:
        if name not in NAMES:
            raise InputError(f"{name!r} is none of the sets: {', '.join(NAMES)}")
        if name in FOLDERS and folder is None:
            raise InputError(f"--data is missing: the folder that {name}/question.jsonl is read from")
    return {name: made(name) if name in MADE else read_prompts(folder / name / "question.jsonl") for name in names}
