"""Messages with roles become the token ids of the template that the pair was trained with."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
from tokenizers import Regex, Tokenizer, normalizers

from c2t.errors import InputError
from c2t.models.loading import template_process
from c2t.models.loading.chat_templates import LLAMA_SYSTEM, VICUNA_SYSTEM, conversation, dialogue
from c2t.models.loading.template_process import TemplateProcess

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
        (["assistant: a", "system: b"], "no first turn"),
        (["assistant: a"], "no first turn"),
        (["system: ", "user: "], "an empty prompt"),
        (["user: "], "an empty prompt"),
    ],
)
def test_what_the_template_does_not_take_is_one_line(tokenizer, said: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        dialogue(tokenizer, "chat", messages(*said))


@pytest.mark.parametrize(
    "said", [["user: a", "assistant: ", "user: b"], ["user: a", "user: b"], ["user: a", "assistant: b"], ["user: a"]]
)
def test_with_a_system_message_turns_are_taken_as_without(tokenizer, said: list[str]) -> None:
    """Their order is the template's matter, and an empty turn, such as one that was interrupted, is a turn."""
    text = tokenizer.decode(dialogue(tokenizer, "chat", messages(*said)))
    assert text == "".join(f"{turn};" for turn in said)
    for system in ("system: You are", "system: "):
        assert tokenizer.decode(dialogue(tokenizer, "chat", messages(system, *said))) == f"{system};{text}"


def asked(template: str, content: str = "a") -> dict:
    return {"messages": messages(f"user: {content}"), "template": template, "special": {"eos_token": "END"}}


@pytest.mark.parametrize("role", ["user", "system"])
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{% if %}", "Expected an expression"),
        ("{{ a.b.c }}", "'a' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{% for part in messages[0].content %}{{ part['text'] + '.' }}{% endfor %}", "has no attribute 'text'"),
        ("{% for x in range(10 ** 20) %}a{% endfor %}", "Python int too large"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include 'x' %}", "no loader"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ '\\ud800' }}", "half of a surrogate pair"),
        ("{{ 'a' * 10 ** 10 }}", "asks for more than 1,024 MiB"),
        ("{{ 'a' * 10 ** 7 }}", "a text of 10,000,000 characters"),
        ({"other": ""}, "multiple chat templates with no default"),
    ],
)
def test_whatever_a_template_raises_is_one_line(tokenizer, template: str, reason: str, role: str) -> None:
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=reason) as error:
        dialogue(tokenizer, "chat", messages("system: b", "user: a") if role == "system" else messages("user: a"))
    assert "chat template" in str(error.value)


@pytest.mark.parametrize(
    "step",
    ["{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{{ 10 ** (10 ** 9) }}"],
)
def test_a_template_that_goes_on_without_end_is_ended(step: str) -> None:
    """Loops, and one step of Python that no signal's handler could interrupt; the next conversation is served."""
    assert TemplateProcess().seconds == 5
    process = TemplateProcess(seconds=0.2)
    with pytest.raises(InputError, match=r"the chat template: it takes more than 0\.2 seconds"):
        process.render(asked(step))
    assert process.render(asked("{{ messages[0].content }}{{ eos_token }}")) == "aEND"


def test_a_process_that_has_ended_is_started_again() -> None:
    process = TemplateProcess()
    assert process.render(asked("{{ messages[0].content }}")) == "a"
    os.kill(process.process.pid, signal.SIGKILL)
    process.process.wait()
    assert process.render(asked("{{ messages[0].content }}")) == "a"


def test_an_interrupted_conversation_is_not_the_next_ones_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    process = TemplateProcess()
    assert process.render(asked("{{ messages[0].content }}")) == "a"

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(template_process.json, "loads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.render(asked("late"))
    monkeypatch.undo()
    assert process.render(asked("{{ messages[0].content }}")) == "a"


def test_threads_get_their_own_texts() -> None:
    process, contents = TemplateProcess(), [f"{number}\u2028\n" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(lambda content: process.render(asked("{{ messages[0].content }}", content)), contents)
        assert list(texts) == contents


def test_the_text_is_that_of_the_tokenizer(tokenizer) -> None:
    """Special tokens, trimmed blocks, filters and functions that transformers adds, and loop controls."""
    tokenizer.chat_template = (
        "{{ bos_token }}{% set ns = namespace(n=0) %}\n{% for m in messages %}\n  {% if loop.index > 2 %}{% break %}"
        "{% endif %}{% set ns.n = ns.n + 1 %}{{ m | tojson }}{% endfor %}{{ ns.n }}"
        "{% if add_generation_prompt %}assistant{% endif %}{{ strftime_now('%Y') }}"
    )
    said = messages("system: é<&>", "user: b", "assistant: c", "user: d")
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert dialogue(tokenizer, "chat", said) == tokenizer(text, add_special_tokens=False).input_ids


def test_the_date_is_todays_or_the_one_that_is_given(tokenizer) -> None:
    process = TemplateProcess()
    date = asked("{{ strftime_now('%d %B %Y') }}")
    assert process.render(date | {"now": "1999-12-31T23:59:59"}) == "31 December 1999"
    assert process.render(date) != "31 December 1999"


def test_a_step_of_the_tokenizer_that_fails_is_one_line(tokenizer) -> None:
    """tokenizers panics, which is no Exception of Python."""
    broken = deepcopy(tokenizer)
    steps = Tokenizer.from_str(broken.backend_tokenizer.to_str())
    steps.normalizer = normalizers.Replace(Regex("(a+)+$"), "b")  # which tries every way to cut a row of a's
    broken._tokenizer = steps
    with pytest.raises(InputError, match=r"the tokenizer cannot read this text .*retry-limit-in-match over"):
        conversation(broken, "", ["a" * 40 + "b"])
