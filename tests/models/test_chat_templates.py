"""Messages with roles become the token ids of the template that the pair was trained with."""

import pytest

from c2t.errors import InputError
from c2t.models.chat_templates import LLAMA_SYSTEM, VICUNA_SYSTEM, conversation, dialogue

OWN = "{% if messages[0].role == 'assistant' %}{{ raise_exception('no first turn') }}{% endif %}"
OWN += "{% for m in messages %}{{ m.role + ': ' + m.content + ';' }}{% endfor %}"


@pytest.fixture
def tokenizer(small_pair):
    small_pair.tokenizer.chat_template = OWN
    yield small_pair.tokenizer
    small_pair.tokenizer.chat_template = None


def messages(*said: str) -> list[dict[str, str]]:
    """Return messages from "role: content"."""
    return [dict(zip(("role", "content"), one.split(": "), strict=True)) for one in said]


@pytest.mark.parametrize("template", ["chat", "llama3", "vicuna", "llama2"])
def test_turns_are_those_of_a_conversation(tokenizer, template: str) -> None:
    said = messages("user: The sum", "assistant: of", "user: two")
    assert dialogue(tokenizer, template, said) == conversation(tokenizer, template, ["The sum", "two"], ["of"])


@pytest.mark.parametrize("template", ["chat", "llama3"])
def test_a_system_message_takes_the_place_of_the_templates_own(tokenizer, template: str) -> None:
    said = messages("system: You are", "user: a number")
    assert tokenizer.decode(dialogue(tokenizer, template, said)) == "system: You are;user: a number;"
    without = tokenizer.decode(dialogue(tokenizer, template, said[1:]))
    assert (LLAMA_SYSTEM in without) == (template == "llama3")


@pytest.mark.parametrize(("template", "own"), [("vicuna", VICUNA_SYSTEM), ("llama2", LLAMA_SYSTEM)])
def test_a_fixed_system_text_is_not_given_up_silently(tokenizer, template: str, own: str) -> None:
    said = messages("system: You are", "user: a number")
    with pytest.raises(InputError, match=r"system, user: the template takes user, assistant, user, .* own system text"):
        dialogue(tokenizer, template, said)
    assert own in tokenizer.decode(dialogue(tokenizer, template, said[1:]))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["user: a", "user: b"], "the template takes user, assistant, user"),
        (["user: a", "assistant: b"], "the template takes user, assistant, user"),
        (["assistant: a", "system: b"], "no first turn"),
        (["system: ", "user: a"], "an empty prompt"),
    ],
)
def test_what_the_template_does_not_take_is_one_line(tokenizer, said: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        dialogue(tokenizer, "chat", messages(*said))
