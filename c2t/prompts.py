"""Prompt sets in the JSONL of Spec-Bench and EAGLE, and the chat templates that turn conversations into token ids."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from c2t.errors import InputError
from c2t.storage import paths as checkpoints

VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
# Meta's default text, as EAGLE's evaluation scripts have it (with two spaces after "safe.").
LLAMA_SYSTEM = (
    "You are a helpful, respectful and honest assistant. Always answer as helpfully as possible, while being safe.  "
    "Your answers should not include any harmful, unethical, racist, sexist, toxic, dangerous, or illegal content. "
    "Please ensure that your responses are socially unbiased and positive in nature.\n\n"
    "If a question does not make any sense, or is not factually coherent, explain why instead of answering something "
    "not correct. If you don't know the answer to a question, please don't share false information."
)


class Prompt(NamedTuple):
    """One conversation: what the user says in each turn. `file`: name of the prompt file that it comes from."""

    question_id: int
    category: str
    turns: list[str]
    file: str


class Encoded(NamedTuple):
    """Texts to continue: the token ids of each, which prompt it is a turn of, and how many turns were left out
    because they do not fit the target's positions."""

    ids: list[list[int]]
    prompts: list[Prompt]
    skipped: int


def read_prompts(path: str | Path) -> list[Prompt]:
    """The prompts of one JSONL file: an object a line with `turns` (a list of texts), `question_id` and `category`.

    Raises InputError, with the number of the line, for anything else.
    """
    path = Path(path)
    try:
        # not splitlines: a text may hold U+2028 and other line ends of Unicode; a BOM is Windows' habit
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"{path}: cannot be read as a prompt file ({reason})") from error
    prompts = [_prompt(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"{path} holds no prompts: give a JSONL file with one object with `turns` a line")
    return prompts


def _prompt(line: str, path: Path, number: int) -> Prompt:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise InputError(f"{path}, line {number}: no JSON object ({error})") from error
    turns = values.get("turns") if isinstance(values, dict) else None
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise InputError(f'{path}, line {number}: needs "turns", a list of at least one text, none of them empty')
    question_id, category = values.get("question_id", number - 1), values.get("category", "")
    if not isinstance(question_id, int) or not isinstance(category, str):
        raise InputError(f"{path}, line {number}: question_id must be an integer and category a text")
    if not all(map(encodable, (category, *turns))):
        raise InputError(f"{path}, line {number}: holds half of a surrogate pair, which is no text")
    return Prompt(question_id, category, turns, path.name)


def encodable(text: str) -> bool:
    """Whether it is text; JSON's escapes, and arguments that are not UTF-8, can make half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_text(text: str) -> None:
    """Raise InputError for a prompt that cannot be continued; one without tokens may still get a BOS token."""
    if not text:
        raise InputError("an empty prompt: give at least one token to continue")
    if not encodable(text):
        raise InputError("a prompt is not UTF-8: it holds half of a surrogate pair, which is no text")


def spread(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """At most `limit` prompts, from every file and category in turn, in the order of each."""
    if limit is not None and limit < 1:
        raise InputError(f"limit = {limit}: use at least one prompt")
    if limit is None or limit >= len(prompts):
        return list(prompts)
    groups: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault((prompt.file, prompt.category), []).append(prompt)
    ranked = sorted((place, group, p) for group, ps in enumerate(groups.values()) for place, p in enumerate(ps))
    return [prompt for _, _, prompt in ranked[:limit]]


def default_prompts(pair: str, purpose: Literal["harvest", "bench"]) -> list[Path]:
    """The prompt files shipped for a pair: those for harvest and for bench come from different sources."""
    folder = checkpoints.shipped() / "data" / "prompts" / ("harvest" if purpose == "harvest" else "")
    paths = sorted(folder.glob("*.jsonl")) if pair in checkpoints.WITH_PROMPTS else []
    if not paths:
        raise InputError(f"no prompts come with the pair {pair}: give them with --prompts FILE (Spec-Bench JSONL)")
    return paths


def conversation(tokenizer: Any, template: str, turns: Sequence[str], answers: Sequence[str] = ()) -> list[int]:
    """Token ids of a conversation up to the place where the answer to the last turn starts.

    template: "" is plain text (each answer continues its turn, the next turn starts a line), "vicuna" and "llama2" are
    written as EAGLE's evaluation scripts write them, everything else is the tokenizer's own chat template ("llama3"
    with Meta's system text).
    """
    assert len(turns) == len(answers) + 1, "every turn but the last one has an answer"
    for turn in turns:
        check_text(turn)
    if template == "":
        return token_ids(tokenizer, "\n".join([*(t + a for t, a in zip(turns, answers, strict=False)), turns[-1]]))
    if template == "vicuna":
        return token_ids(tokenizer, _vicuna(turns, answers))
    if template == "llama2":
        return token_ids(tokenizer, _llama2(turns, answers))
    system = [{"role": "system", "content": LLAMA_SYSTEM}] if template == "llama3" else []
    said = [
        message
        for turn, answer in zip(turns, [*answers, ""], strict=True)
        for message in ({"role": "user", "content": turn}, {"role": "assistant", "content": answer})
    ]
    text = tokenizer.apply_chat_template([*system, *said[:-1]], tokenize=False, add_generation_prompt=True)
    return token_ids(tokenizer, text, special=False)


def token_ids(tokenizer: Any, text: str, special: bool = True) -> list[int]:
    """Quietly: what is too long for the target is left out or refused in c2t's own words."""
    return tokenizer(text, add_special_tokens=special, verbose=False).input_ids


def _vicuna(turns: Sequence[str], answers: Sequence[str]) -> str:
    history = "".join(f"USER: {t} ASSISTANT: {a.strip()}</s>" for t, a in zip(turns, answers, strict=False))
    return f"{VICUNA_SYSTEM} {history}USER: {turns[-1]} ASSISTANT:"


def _llama2(turns: Sequence[str], answers: Sequence[str]) -> str:
    """The trailing space is the evaluation scripts' own; the published figures are measured with it."""
    asked = [f"<<SYS>>\n{LLAMA_SYSTEM}\n<</SYS>>\n\n{turns[0]}", *turns[1:]]
    history = "".join(f"[INST] {t} [/INST] {a.strip()} </s><s>" for t, a in zip(asked, answers, strict=False))
    return f"{history}[INST] {asked[-1]} [/INST] "


def encode_all(
    tokenizer: Any,
    template: str,
    prompts: Sequence[Prompt],
    longest: int,
    answer: Callable[[list[list[int]]], list[str]],
) -> Encoded:
    """Every turn of every prompt as token ids of at most `longest` tokens: first turns first, then second ones.

    `answer(ids)` writes the target's answers that later turns refer to. A turn that does not fit is left out together
    with the turns after it; InputError if no turn is left.
    """
    ids: list[list[int]] = []
    kept: list[Prompt] = []
    histories: list[tuple[Prompt, list[str]]] = [(prompt, []) for prompt in prompts]
    while histories:
        turn = len(histories[0][1])
        encoded = [conversation(tokenizer, template, p.turns[: turn + 1], answers) for p, answers in histories]
        if not all(encoded):
            raise InputError("a prompt has no tokens: give at least one to continue")
        fitting = [(e, *h) for e, h in zip(encoded, histories, strict=True) if len(e) <= longest]
        ids += [e for e, _, _ in fitting]
        kept += [prompt for _, prompt, _ in fitting]
        going = [(e, prompt, answers) for e, prompt, answers in fitting if len(prompt.turns) > turn + 1]
        written = answer([e for e, _, _ in going]) if going else []
        histories = [(prompt, [*answers, new]) for (_, prompt, answers), new in zip(going, written, strict=True)]
    if not ids:
        raise InputError(f"all {len(prompts)} prompts are longer than {longest} tokens, what the target has room for")
    return Encoded(ids, kept, sum(len(prompt.turns) for prompt in prompts) - len(ids))
