"""Parts of a text that is written token by token."""

from c2t.models.pairs import Pair
from c2t.pieces import Pieces


def test_pieces_are_the_text_where_characters_have_several_tokens(small_pair: Pair) -> None:
    tokenizer = small_pair.tokenizer
    text = "The \u20ac of two \u2603 numbers\n\u00e9"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    pieces = Pieces(tokenizer)(tokens)
    assert "".join(pieces) == text
    assert "" in pieces, "some tokens are only a part of a character"
    assert "\ufffd" not in "".join(pieces)


def test_bytes_that_are_no_character_do_not_wait_forever(small_pair: Pair) -> None:
    [token] = small_pair.tokenizer.encode("\u20ac", add_special_tokens=False)[:1]
    assert "".join(Pieces(small_pair.tokenizer)([token] * 8)) == "\ufffd" * 8
