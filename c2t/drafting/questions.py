"""Questions for the target's texts: given ones, tasks from the docstrings of Python's library, and turns that the
target itself invents."""

import ast
import random
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from c2t.drafting.texts import write
from c2t.errors import InputError
from c2t.models.loading.chat_templates import conversation, token_ids
from c2t.models.loading.load import Pair
from c2t.models.loading.template_process import rendered

# Temperatures of the answers, in turn.
TEMPERATURES = (0.0, 0.7, 1.0)
# Returns at most `count` questions: (count, how many of this temperature were asked before, temperature).
Source = Callable[[int, int, float], list[str]]
TURN_TOKENS = 96  # of an invented turn, at most
TASKS = 1500  # functions to complete, at most
DOCSTRING = (80, 900)  # characters
PHRASES = (
    "Complete this Python function.",
    "Write the body of this function:",
    "Finish the following code.",
    "Implement the function below in Python, and explain it in short.",
)
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "__pycache__"}
MARK = "qzxqzx"  # stands for a user's turn in a template


def sources(pair: Pair, given: Sequence[str]) -> dict[str, Source]:
    """Return the sources of questions for a target: given ones, turns that it invents if its chat template has a place
    for them, and functions out of Python's docstrings. A target without a template continues documents."""
    by_name: dict[str, Source] = {"given": pool(given)} if given else {}
    if pair.template:
        with suppress(InputError):  # an unusual template
            by_name["invented"] = invented(pair)
    if not given:
        by_name["docstrings"] = pool(tasks() if pair.template else documents())
    return by_name


def pool(turns: Sequence[str]) -> Source:
    """Return given questions as a source. Each temperature starts elsewhere and repeats them; greedy answers, which
    would be the same again, end with the last question."""
    turns = list(dict.fromkeys(turns))
    random.Random(0).shuffle(turns)  # noqa: S311 - an order is no secret

    def ask(count: int, before: int, temperature: float) -> list[str]:
        begin = TEMPERATURES.index(temperature) * len(turns) // len(TEMPERATURES)
        numbers = range(before, before + min(count, len(turns)))
        if temperature == 0:
            numbers = range(before, min(before + count, len(turns)))
        return [turns[(begin + number) % len(turns)] for number in numbers]

    return ask


def invented(pair: Pair, allowed: Callable[[str], bool] = lambda turn: True) -> Source:
    """Return a source of users' turns that the target generates after its chat template's beginning of one. InputError
    for a target without such a template. allowed: returns False for turns to leave out."""
    header, ends = turn_of_template(pair)

    def ask(count: int, before: int, temperature: float) -> list[str]:
        texts = write(pair.target, [header] * count, 1.0, TURN_TOKENS, count // 8, ends)
        ended: dict[str, bool] = {}
        for ids in texts.ids.split(texts.lengths.tolist()):
            turn = pair.tokenizer.decode(ids[len(header) :], skip_special_tokens=True).strip()
            if turn and allowed(turn):
                ended[turn] = int(ids[-1]) in ends
        # A target that was not trained on users' turns may not end them: then they are cut.
        return [turn for turn, whole in ended.items() if whole] or list(ended)

    return ask


def turn_of_template(pair: Pair) -> tuple[list[int], frozenset[int]]:
    """Return the tokens of the chat template up to where a user's turn begins, and those that end one."""
    if not pair.template:
        raise InputError(
            f"{pair.name} has no chat template, so it cannot invent questions: give texts that it is to continue, with "
            "--prompts FILE (JSONL with `turns`)"
        )
    text = rendered(pair.tokenizer, [{"role": "user", "content": MARK}])
    before, mark, after = text.partition(MARK)
    if not mark:
        raise InputError(f"the chat template of {pair.name} has no place for a user's turn: give questions: --prompts")
    header, after_turn = (token_ids(pair.tokenizer, part, special=False) for part in (before, after))
    if not header:
        raise InputError(f"the chat template of {pair.name} begins with the user's turn: give questions: --prompts")
    return header, pair.target.eos | frozenset(after_turn[:1])


def tasks() -> list[str]:
    """Return tasks to complete a function, from signatures and docstrings of Python's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in library.rglob("*.py") if SKIPPED.isdisjoint(path.relative_to(library).parts))
    random.Random(0).shuffle(paths)  # noqa: S311 - an order is no secret
    heads: dict[str, None] = {}
    for path in paths:
        heads |= dict.fromkeys(functions(path))
        if len(heads) >= TASKS:
            break
    return [f"{PHRASES[index % len(PHRASES)]}\n\n{text}" for index, text in enumerate(heads)]


def documents() -> list[str]:
    """Return beginnings of documents: heads and docstrings of functions of Python's standard library. Every second one
    lacks its first words, because the states of a whole text depend on its first token: a head that has seen one alone
    fails after any other."""
    texts = [task.partition("\n\n")[2] for task in tasks()]
    return [re.split(r"\s+", text, maxsplit=index % 6)[-1] if index % 2 else text for index, text in enumerate(texts)]


def functions(path: Path) -> Iterator[str]:
    """Yield head and docstring of each function of a file that has a docstring of a fitting length."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            continue
        docstring = ast.get_docstring(node)
        if docstring is not None and DOCSTRING[0] <= len(docstring) <= DOCSTRING[1]:
            indented = "\n".join(f"    {line}".rstrip() for line in docstring.splitlines())
            yield f'def {node.name}({ast.unparse(node.args)}):\n    """{indented.strip()}\n    """\n'


def encoded(pair: Pair, turn: str) -> list[int]:
    """Return the tokens of a question up to where its answer begins."""
    return conversation(pair.tokenizer, pair.template, [turn])
