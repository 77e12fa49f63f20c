"""Five sets of prompts: three of EAGLE's, and two that are written here, in the manner of MBPP and of long documents.
Others, to choose settings on."""

from itertools import product
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

from c2t.replay.prompts import Prompt, read_prompts, spread

FOLDERS = ("gsm8k", "humaneval", "mt_bench")
OTHERS = ("gsm8k_train.jsonl", "self_instruct.jsonl")
FUNCTIONS, DOCUMENTS = "functions", "documents"
FINDS = (
    *("find the largest of", "find the smallest of", "count", "sort", "reverse the order of", "remove duplicates from"),
    *("add up the squares of", "check whether there are two equal ones among", "find the most frequent of"),
    *("return every second one of", "find the sum of the first three of", "return the positions of"),
)
THINGS = (
    *("the numbers in a list", "the words in a sentence", "the even numbers in a tuple", "the vowels in a string"),
    *("the values of a dictionary", "the digits of an integer", "the negative numbers in a list of lists"),
    *("the lines of a text that begin with a capital letter",),
)
CHARACTERS = 3500  # of a document


class PromptSets(NamedTuple):
    """judged: prompts of each set. others: prompts that settings are chosen on, of none of them."""

    judged: dict[str, list[Prompt]]
    others: list[Prompt]


def functions() -> list[Prompt]:
    """Return tasks to write a function, as MBPP has them."""
    tasks = [f"Write a python function to {find} {thing}." for thing, find in product(THINGS, FINDS)]
    return [Prompt(number, FUNCTIONS, [task], FUNCTIONS) for number, task in enumerate(tasks)]


def documents() -> list[Prompt]:
    """Return pages of Python's reference with the task to summarise them."""
    texts = [text for _, text in sorted(topics.items())]
    pages = [text[at - CHARACTERS : at] for text in texts for at in range(CHARACTERS, len(text), CHARACTERS)]
    tasks = [f"{page}\n\nSummarize the text above in a few sentences." for page in pages]
    return [Prompt(number, DOCUMENTS, [task], DOCUMENTS) for number, task in enumerate(tasks)]


def prompt_sets(folder: Path, judged: int, others: int) -> PromptSets:
    """Return the first turns of so many prompts of each set, and of so many others of each kind.

    folder: has SET/question.jsonl for EAGLE's sets, and train/ with OTHERS.
    """
    sets = {name: read_prompts(folder / name / "question.jsonl") for name in FOLDERS}
    made = {FUNCTIONS: functions(), DOCUMENTS: documents()}
    for_choice = [read_prompts(folder / "train" / name) for name in OTHERS]
    for_choice += [prompts[-others:] for prompts in made.values()]
    sets |= {name: prompts[:-others] for name, prompts in made.items()}
    return PromptSets(
        {name: [_first(prompt, name) for prompt in spread(prompts, judged)] for name, prompts in sets.items()},
        [_first(prompt, prompt.file) for prompts in for_choice for prompt in spread(prompts, others)],
    )


def _first(prompt: Prompt, name: str) -> Prompt:
    return prompt._replace(turns=prompt.turns[:1], file=name)
