"""Prompts as users give them: texts, conversations of messages, and token ids; all become token ids."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from c2t.errors import InputError, check_kind, check_truth, short_repr
from c2t.models.loading.chat_templates import OLDER, conversation, dialogue
from c2t.models.loading.load import Pair
from c2t.verification.prompt_ids import checked_ids

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
Prompts = Prompt | Sequence[Prompt]
ROLES = ("system", "developer", "user", "assistant", "tool")


def encode(pair: Pair, prompts: Prompts, chat: bool = True, system: str | None = None) -> list[list[int]]:
    """Return the token ids of one prompt or several, each as `encode_one` does."""
    if hasattr(prompts, "tolist"):  # a tensor or an array
        prompts = prompts.tolist()
    if isinstance(prompts, Mapping):
        raise InputError("a mapping is no prompt: give its input_ids, a text, or a list of messages")
    check_kind("prompts", prompts, Sequence, "a text, messages, token ids, or a list of these")
    several = [prompts] if isinstance(prompts, str) else prompts
    if not len(several):
        raise InputError("no prompt: give at least one")
    if isinstance(several[0], Integral | Mapping):
        several = [several]
    return [encode_one(pair, prompt, chat, system) for prompt in several]


def encode_one(pair: Pair, prompt: Prompt, chat: bool = True, system: str | None = None) -> list[int]:
    """Return the token ids of a text, a conversation or token ids; InputError for an empty one, for messages or a
    system turn without a chat template, and for ids outside the vocabulary.

    chat: a text is the user's turn of a new conversation, where the pair has a chat template; else it is continued.
    system: the system turn before a text or a conversation.
    """
    check_truth("chat", chat)
    check_kind("system", system, str | None, "a text")
    template = pair.template if chat else ""
    messages = isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
    if messages or system is not None:
        turns = _messages(prompt, system)
        if not template:
            why = "chat=False leaves it out" if not chat else f"the pair {pair.name} has none"
            raise InputError(f"{'messages need' if messages else 'system needs'} a chat template, and {why}")
        prompt = dialogue(pair.tokenizer, template, turns)
    elif isinstance(prompt, str):
        prompt = conversation(pair.tokenizer, template, [prompt])
    return checked_ids(prompt, pair.target.config.vocab_size)


def _messages(prompt: Prompt, system: str | None) -> list[Message]:
    """Return a text or a conversation as messages, after the system turn; InputError for what is no conversation."""
    turns: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if not any(isinstance(turn, Mapping) for turn in turns):
        raise InputError("system is for texts and messages: token ids are used unchanged")
    for turn in turns:
        check_kind("a message", turn, Mapping, 'a mapping, such as {"role": "user", "content": "Hello"}')
        role = turn.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise InputError(f"a message's role = {short_repr(role)} must be one of {', '.join(ROLES)}")
        check_kind(f"the content of a message by {role}", turn.get("content"), str, "a text")
    turns = [{**turn, "role": OLDER.get(turn["role"], turn["role"])} for turn in turns]
    if system is None:
        return turns
    if any(turn["role"] == "system" for turn in turns):
        raise InputError("system: the messages have a system turn already; leave one out")
    return [{"role": "system", "content": system}, *turns]
