"""Parts of a text that is written token by token."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from c2t.models.loading.load import Pair
from c2t.output.detokenizer import IncrementalDetokenizer
from c2t.storage.paths import find
from tests.marks import needs_smollm2


def sentencepiece() -> PreTrainedTokenizerBase:
    """Like Llama 2's: bytes are tokens of their own, and a text's first space is left out."""
    words = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "\u2581a", "."]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{"bos_token": "<s>"})


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=needs_smollm2), "sentencepiece"], scope="module")
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    if request.param == "sentencepiece":
        return sentencepiece()
    return AutoTokenizer.from_pretrained(find(request.param, "target"))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pieces_and_the_rest_are_the_text(tokenizer: PreTrainedTokenizerBase, data: st.DataObject) -> None:
    """Of any tokens: special ones, bytes that are no character, characters of several tokens."""
    parts = tokenizer.encode("\U0001f600\u20ac", add_special_tokens=False)
    some = st.sampled_from(parts) | st.sampled_from(tokenizer.all_special_ids) | st.integers(0, len(tokenizer) - 1)
    tokens = data.draw(st.lists(some, max_size=40))
    pieces = IncrementalDetokenizer(tokenizer)
    shown = "".join(pieces([token])[0] for token in tokens)
    whole = tokenizer.batch_decode([tokens], skip_special_tokens=True)[0]
    assert shown + pieces.rest() == whole


def test_pieces_are_the_text_where_characters_have_several_tokens(small_pair: Pair) -> None:
    tokenizer = small_pair.tokenizer
    text = "The \u20ac of two \u2603 numbers\n\u00e9"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    pieces = IncrementalDetokenizer(tokenizer)(tokens)
    assert "".join(pieces) == text
    assert "" in pieces, "some tokens are only a part of a character"
    assert "\ufffd" not in "".join(pieces)


def test_bytes_that_are_no_character_do_not_wait_forever(small_pair: Pair) -> None:
    [token] = small_pair.tokenizer.encode("\u20ac", add_special_tokens=False)[:1]
    pieces = IncrementalDetokenizer(small_pair.tokenizer)
    assert "".join(pieces([token] * 800)) == "\ufffd" * 799
    assert len(pieces.context + pieces.waiting) < 20, "each token costs the same"
    assert pieces.rest() == "\ufffd"


def test_only_hidden_tokens_have_no_text() -> None:
    """The special ones by default; of a constrained text those that end it, since others may be its own."""
    tokenizer = sentencepiece()
    tokenizer.add_special_tokens({"eos_token": "</s>", "additional_special_tokens": ["<call>"]})
    tokens = [tokenizer.convert_tokens_to_ids(token) for token in ("<call>", "a", "\u2581a", "</s>")]
    assert "".join(IncrementalDetokenizer(tokenizer)(tokens)) == "a a"
    hidden = frozenset({tokenizer.eos_token_id})
    assert "".join(IncrementalDetokenizer(tokenizer, hidden)(tokens)).replace(" ", "") == "<call>aa"
