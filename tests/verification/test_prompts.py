"""Prompts as users give them: what is no conversation, or has no chat template, is refused in one line."""

from typing import Any

import pytest

from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.verification.prompts import encode

USER = {"role": "user", "content": "a number"}


@pytest.fixture(scope="module")
def chatting(small_home) -> Pair:
    """A pair with Llama-2's template, which has its own system text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C2T_HOME", str(small_home))
        return load_pair("llama2-7b")


def test_messages_are_the_templates_turns(chatting: Pair) -> None:
    assert encode(chatting, [USER]) == encode(chatting, "a number")
    again = [USER, {"role": "assistant", "content": "two"}, {"role": "user", "content": "and"}]
    assert encode(chatting, [again, "a number"]) == [*encode(chatting, again), *encode(chatting, "a number")]
    with pytest.raises(InputError, match="user, user: the template takes user, assistant, user"):
        encode(chatting, [USER, USER])


@pytest.mark.parametrize(
    ("prompts", "how", "message"),
    [
        (
            [{"role": "robot", "content": "a"}],
            {},
            "a message's role = 'robot' must be one of system, developer, user, assistant",
        ),
        ([{"content": "a"}], {}, "a message's role = None must be one of system"),
        ([{"role": ["user"], "content": "a"}], {}, r"a message's role = \['user'\] must be one of system"),
        ([{"role": "user"}], {}, "the content of a message by user = None must be a text"),
        ([{"role": "user", "content": ["a"]}], {}, r"the content of a message by user = \['a'\] must be a text"),
        ([{"role": "user", "content": ""}], {}, "an empty prompt"),
        ([{"role": "developer", "content": "a"}, USER], {}, "system, user: the template takes user, assistant"),
        ([{"role": "developer", "content": "a"}, USER], {"system": "b"}, "have a system turn already"),
        ("a", {"system": "be brief"}, "system, user: the template takes user, assistant.*has its own system text"),
        ([1], {"system": "be brief"}, "token ids are used unchanged"),
        ("a", {"system": "be brief", "chat": False}, "system needs a chat template, and chat=False leaves it out"),
        ([USER], {"chat": False}, "messages need a chat template, and chat=False leaves it out"),
    ],
    ids=range(12),
)
def test_what_is_no_conversation_is_refused(chatting: Pair, prompts: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        encode(chatting, prompts, **how)


def test_without_a_template_there_are_texts_only(small_pair: Pair) -> None:
    for prompts, how in (([USER], {}), ("a", {"system": "b"})):
        with pytest.raises(InputError, match=r"needs? a chat template, and the pair .* has none"):
            encode(small_pair, prompts, **how)
