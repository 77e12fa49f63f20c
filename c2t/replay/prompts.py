"""Prompt sets in the JSONL of EAGLE, Spec-Bench and SPEED-Bench."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from c2t.errors import InputError, check_whole
from c2t.models.loading.chat_templates import conversation
from c2t.storage import paths as checkpoints
from c2t.storage.checked import OPEN, from_json, read_file

# More than any real set of prompts has; a hostile file would take memory and hours before any other check.
MOST_BYTES, MOST_LINES, MOST_LINE_BYTES, MOST_TURNS = 256 * 2**20, 1_000_000, 2**20, 1000


# SPEED-Bench's are texts, those of the others numbers.
QuestionId = Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=256)]


class Prompt(NamedTuple):
    """One conversation. turns: those of the user. file: name of its prompt file."""

    question_id: int | str
    category: str
    turns: list[str]
    file: str


class Encoded(NamedTuple):
    """Texts to continue. ids: tokens of each. prompts: the conversation of each. skipped: number of turns left out,
    which do not fit the target's positions."""

    ids: list[list[int]]
    prompts: list[Prompt]
    skipped: int


def read_prompts(path: str | Path) -> list[Prompt]:
    """Return the prompts of a JSONL file, with one object per line: `turns` (a list of texts), `question_id`,
    `category`.

    Raises InputError, with the number of the line, for anything else, and for more than MOST_BYTES, MOST_LINES,
    MOST_LINE_BYTES or MOST_TURNS.
    """
    prompts = [
        Prompt(number - 1 if line.question_id is None else line.question_id, line.category, line.turns, Path(path).name)
        for number, line in json_lines(path, _Line, "a prompt file")
    ]
    if not prompts:
        raise InputError(f"{path} holds no prompts: give a JSONL file with one object with `turns` a line")
    return prompts


def json_lines(path: str | Path, kind: Any, what: str) -> Iterator[tuple[int, Any]]:
    """Yield the lines of a JSONL file as `kind`, with their numbers from 1; skip empty ones. InputError, with
    the number of the line, for anything else, and for more than MOST_BYTES, MOST_LINES or MOST_LINE_BYTES."""
    path = checkpoints.usable(path)
    text = read_file(path, what, MOST_BYTES)
    # not splitlines: a text may contain U+2028 and other line ends of Unicode; files of Windows may have a BOM
    for number, line in enumerate(io.BytesIO(text.removeprefix(b"\xef\xbb\xbf")), 1):
        if number > MOST_LINES:
            raise InputError(f"{path}: more than {MOST_LINES:,} lines; split the file")
        if len(line) > MOST_LINE_BYTES:
            raise InputError(f"{path}, line {number}: more than {MOST_LINE_BYTES // 2**20} MiB; shorten its texts")
        if line.strip():
            try:
                words = line.decode()
            except UnicodeDecodeError as error:
                raise InputError(f"{path}: cannot be read as {what} (not UTF-8 in line {number})") from error
            yield number, from_json(kind, words, f"{path}, line {number}")


@dataclass(frozen=True)
class _Line:
    __pydantic_config__ = OPEN
    turns: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MOST_TURNS)]
    question_id: QuestionId | None = None
    category: str = ""


def spread(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """Return at most `limit` prompts, taken from every file and category in turn. InputError for a limit below 1."""
    if limit is not None:
        check_whole("limit", limit, least=1)
    if limit is None or limit >= len(prompts):
        return list(prompts)
    groups: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault((prompt.file, prompt.category), []).append(prompt)
    ranked = sorted((index, group, p) for group, ps in enumerate(groups.values()) for index, p in enumerate(ps))
    return [prompt for _, _, prompt in ranked[:limit]]


def default_prompts(pair: str, purpose: Literal["harvest", "bench"]) -> list[Path]:
    """Return the prompt files of a pair; those for harvest and for bench have different sources. InputError if there
    are none."""
    paths = checkpoints.prompts_of(pair, purpose)
    if not paths:
        raise InputError(f"no prompts come with the pair {pair}: give them with --prompts FILE (Spec-Bench JSONL)")
    return paths


def timing_prompts(pair: str) -> list[Path]:
    """Return prompt files to measure a pair's speed on: its own for harvest, else those of the default pair."""
    return checkpoints.prompts_of(pair, "harvest") or checkpoints.prompts_of(checkpoints.DEFAULT_PAIR, "harvest")


def encode_all(
    tokenizer: Any,
    template: str,
    prompts: Sequence[Prompt],
    longest: int,
    answer: Callable[[list[list[int]]], list[str]],
) -> Encoded:
    """Return every turn of every prompt as token ids, at most `longest` of them: first turns first, then second ones.

    answer(ids): returns the target's answers, which later turns refer to. A turn that does not fit is left out together
    with the turns after it. InputError if no turn fits, and without prompts.
    """
    ids: list[list[int]] = []
    if not prompts:
        raise InputError("there are no prompts: give at least one")
    included: list[Prompt] = []
    histories: list[tuple[Prompt, list[str]]] = [(prompt, []) for prompt in prompts]
    while histories:
        turn = len(histories[0][1])
        encoded = [conversation(tokenizer, template, p.turns[: turn + 1], answers) for p, answers in histories]
        if not all(encoded):
            raise InputError("a prompt has no tokens: give at least one to continue")
        fitting = [(e, *h) for e, h in zip(encoded, histories, strict=True) if len(e) <= longest]
        ids += [e for e, _, _ in fitting]
        included += [prompt for _, prompt, _ in fitting]
        unfinished = [(e, prompt, answers) for e, prompt, answers in fitting if len(prompt.turns) > turn + 1]
        replies = answer([e for e, _, _ in unfinished]) if unfinished else []
        histories = [(prompt, [*answers, new]) for (_, prompt, answers), new in zip(unfinished, replies, strict=True)]
    if not ids:
        raise InputError(f"all {len(prompts)} prompts are longer than {longest} tokens, what the target has room for")
    return Encoded(ids, included, sum(len(prompt.turns) for prompt in prompts) - len(ids))
