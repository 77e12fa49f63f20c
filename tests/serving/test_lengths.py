"""What a text's characters say about its tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from c2t.models.loading.load import load_pair
from c2t.serving.lengths import characters_of_a_token

TINY = load_pair("tiny").tokenizer


@settings(deadline=None)  # a busy machine is slow
@given(st.text(max_size=200) | st.text(" \n", max_size=200))
def test_a_text_has_as_many_tokens_as_it_promises(text: str) -> None:
    most = characters_of_a_token(TINY)
    assert len(TINY(text, add_special_tokens=False).input_ids) * most >= len(text)


@pytest.mark.parametrize("step", ["normalizer", "lstrip", "alphabet", "split", "words"])
def test_where_a_step_may_lose_characters_nothing_is_promised(step: str) -> None:
    alphabet = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    if step == "alphabet":
        del alphabet["Ġ"]
    made = Tokenizer(models.WordLevel(alphabet, "!") if step == "words" else models.BPE(alphabet, []))
    removes = pre_tokenizers.Split(" ", "removed" if step == "split" else "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([removes, pre_tokenizers.ByteLevel()])
    if step == "normalizer":
        made.normalizer = normalizers.NFKC()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    if step == "lstrip":
        tokenizer.add_tokens([AddedToken("<x>", lstrip=True)])
    assert characters_of_a_token(tokenizer) is None
