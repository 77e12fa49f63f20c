"""The tokenizer restores every text and begins it with the separator."""

import pytest
from transformers import AutoTokenizer

from pipelines.pair.recipes import PAIRS, SEPARATOR

OUT = PAIRS["tiny"].out
TEXTS = ["def f(x):\n        return x\n", "  two  spaces", ">>> print('ü€😀')\nü€😀", "a.b, c ."]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_behind_the_separator(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(OUT / "target")
    ids = tokenizer(text).input_ids
    assert ids[0] == SEPARATOR == tokenizer.eos_token_id == tokenizer.bos_token_id
    assert ids.count(SEPARATOR) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer) == PAIRS["tiny"].vocabulary
