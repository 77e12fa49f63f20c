"""The chat templates that turn conversations into token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from c2t.errors import InputError, refusing
from c2t.models.loading.template_process import rendered

LONGEST = 2**20  # most characters of a turn
OLDER = {"developer": "system"}  # what templates know of OpenAI's newer names of roles
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


def conversation(
    tokenizer: Any, template: str, turns: Sequence[str], answers: Sequence[str] = (), now: str | None = None
) -> list[int]:
    """Return the token ids of a conversation up to the place where the answer to the last turn starts.

    template: "" is plain text (each answer follows its turn, the next turn starts a new line); "vicuna" and "llama2"
    are as in EAGLE's evaluation scripts; anything else is the tokenizer's own chat template ("llama3"
    with Meta's system text). now: the time (ISO 8601) for a template that writes the date, by default that of the
    clock. Raises InputError as `check_turns` does, and for a template that makes no text of it.
    """
    assert len(turns) == len(answers) + 1, "every turn but the last one has an answer"
    check_turns(turns)
    if template == "":
        return token_ids(tokenizer, "\n".join([*(t + a for t, a in zip(turns, answers, strict=False)), turns[-1]]))
    if template == "vicuna":
        return token_ids(tokenizer, _vicuna(turns, answers))
    if template == "llama2":
        return token_ids(tokenizer, _llama2(turns, answers))
    messages = [
        message
        for turn, answer in zip(turns, [*answers, ""], strict=True)
        for message in ({"role": "user", "content": turn}, {"role": "assistant", "content": answer})
    ]
    return _by_template(tokenizer, [*_system(template), *messages[:-1]], now)


def dialogue(
    tokenizer: Any,
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    opened: bool = True,
    continued: bool = False,
    variables: Mapping[str, str | float | bool] | None = None,
) -> list[int]:
    """Return the token ids of messages with role and content, up to the place where the answer to the last one starts.

    template: as in `conversation`, but not "". A system message takes the place of the template's own, which says in
    which order roles may come. tools: functions that the answer may call, for a template that reads them. opened:
    whether the template begins a message for the answer. continued: the answer goes on with the last message's text.
    variables: of the template, which ignores those that it does not read.
    Raises InputError for messages that it does not take, and as `check_turns` does.
    """
    roles, texts = [message["role"] for message in messages], [message["content"] for message in messages]
    if template in ("vicuna", "llama2"):
        if tools or not opened:
            raise InputError(f"the template {template} has no tools, and answers with new messages only")
        if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            only = "; this one has its own system text" if "system" in roles else ""
            raise InputError(f"messages: {', '.join(roles)}: the template takes user, assistant, user, ...{only}")
        return conversation(tokenizer, template, texts[::2], texts[1::2])
    check_turns(texts)
    messages = [*([] if "system" in roles else _system(template)), *messages]
    return _by_template(tokenizer, messages, tools=tools, opened=opened, continued=continued, variables=variables)


def _system(template: str) -> list[dict[str, str]]:
    """Return a template's default system message."""
    return [{"role": "system", "content": LLAMA_SYSTEM}] if template == "llama3" else []


def _by_template(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], now: str | None = None, **more: Any
) -> list[int]:
    """Return the token ids of messages by the tokenizer's own chat template; arguments as of `rendered`."""
    text = rendered(tokenizer, messages, now, **more)
    if not encodable(text):
        raise InputError("the chat template makes a text that is not UTF-8: it holds half of a surrogate pair")
    return token_ids(tokenizer, text, special=False)


def token_ids(tokenizer: Any, text: str, special: bool = True) -> list[int]:
    """Return the token ids of a text, without the tokenizer's warning about long texts: c2t itself leaves out or
    refuses a text that is too long for the target. InputError where the tokenizer's file has a step that fails."""
    with refusing("the tokenizer cannot read this text"):
        return tokenizer(text, add_special_tokens=special, verbose=False).input_ids


def _vicuna(turns: Sequence[str], answers: Sequence[str]) -> str:
    history = "".join(f"USER: {t} ASSISTANT: {a.strip()}</s>" for t, a in zip(turns, answers, strict=False))
    return f"{VICUNA_SYSTEM} {history}USER: {turns[-1]} ASSISTANT:"


def _llama2(turns: Sequence[str], answers: Sequence[str]) -> str:
    """Return the prompt with the trailing space of EAGLE's evaluation scripts; the published figures are measured with
    it."""
    prompts = [f"<<SYS>>\n{LLAMA_SYSTEM}\n<</SYS>>\n\n{turns[0]}", *turns[1:]]
    history = "".join(f"[INST] {t} [/INST] {a.strip()} </s><s>" for t, a in zip(prompts, answers, strict=False))
    return f"{history}[INST] {prompts[-1]} [/INST] "


def encodable(text: str) -> bool:
    """Return True if a string can be encoded as UTF-8: JSON's escapes, and arguments that are not UTF-8, can leave half
    of a surrogate pair in it."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_turns(turns: Sequence[str]) -> None:
    """Raise InputError for turns that `check_text` refuses; one is empty only if others are not."""
    for turn in turns:
        check_text(turn or " ")
    if not any(turns):
        check_text("")


def check_text(text: str) -> None:
    """Raise InputError for an empty prompt, for one that is not valid UTF-8, and for one of more than LONGEST
    characters, which no target has room for. One without tokens passes: it may still get a BOS token."""
    if len(text) > LONGEST:
        raise InputError(f"a prompt of {len(text):,} characters: give at most {LONGEST:,}")
    if not text:
        raise InputError("an empty prompt: give at least one token to continue")
    if not encodable(text):
        raise InputError("a prompt is not UTF-8: it holds half of a surrogate pair, which is no text")
