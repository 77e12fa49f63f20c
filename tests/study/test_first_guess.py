"""The check of a head's first guesses: counts by the modules alone, both alignments of a block, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from c2t.errors import InputError
from c2t.models.drafts.block import BlockHead
from c2t.models.drafts.block_draft import BlockDraft
from c2t.models.loading.load import Pair, load_pair, with_ngrams
from c2t.study.first_guess import TOKENS, FirstGuess, first_guess
from c2t.tree import Tree
from c2t.verification.prompts import encode
from tests.rounding import assert_equal
from tests.tiny_heads import DSPARK, saved, tiny_head

TEXT = "def add(a, b):\n    return a + b\n\ndef sub(a, b"


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("tiny", dtype=torch.float32)


@torch.no_grad()
def test_guesses_are_counted_as_the_modules_make_them(pair: Pair) -> None:
    """Token by token: the target's argmax and that of its head; n-grams on the draft are left out."""
    ids = pair.tokenizer(TEXT).input_ids
    model, head, tokens = pair.target.model, pair.draft.head, torch.tensor([ids])
    for _ in range(TOKENS):
        out = model(tokens, output_hidden_states=True)
        following = out.logits[:, -1:].argmax(-1)
        assert int(following) not in pair.target.eos
        tokens = torch.cat([tokens, following], 1)
    states = model(tokens, output_hidden_states=True).hidden_states[-1]
    guesses = head.logits(head(states[:, :-2], tokens[:, 1:-1]), pair.target.lm_head).argmax(-1)[0]
    right = int((guesses == tokens[0, 2:])[len(ids) - 1 :].sum())
    assert first_guess(pair, ids) == FirstGuess(right, TOKENS - 1)
    assert 0 < right < TOKENS - 1
    assert first_guess(with_ngrams(pair), ids) == FirstGuess(right, TOKENS - 1)


@torch.no_grad()
def test_a_block_is_read_in_its_other_alignment_too(pair: Pair, tmp_path: Path) -> None:
    loaded = load_pair("tiny", draft=saved("dspark", tmp_path), dtype=torch.float32)
    ids = loaded.tokenizer(TEXT).input_ids
    found = first_guess(loaded, ids)
    assert found.otherwise is not None
    assert "with the other alignment" in found.line
    head = tiny_head("dspark")
    other = BlockHead(head.config, replace(DSPARK, from_anchor=False))
    other.load_state_dict(head.state_dict(), strict=False)
    head.embed_tokens = other.embed_tokens = pair.target.embed_tokens
    tokens = torch.tensor([ids])
    features = torch.randn(1, len(ids) - 1, head.fc.in_features)
    logits = []
    for draft in (BlockDraft(head, pair.target.lm_head).realigned(), BlockDraft(other, pair.target.lm_head)):
        session = draft.session()
        session.observe(tokens, features, torch.tensor([len(ids) - 1]))
        logits.append(session.expand(Tree.root(tokens[:, -1]), torch.tensor([[0]])).logits)
    assert_equal(*logits)


def test_the_line_says_what_few_right_guesses_mean() -> None:
    assert FirstGuess(45, 63).line == "first guess: 45 of 63 tokens are the target's (71%)"
    assert FirstGuess(2, 63, 40).line.startswith(
        "first guess: 2 of 63 tokens are the target's (3%), with the other alignment 63%; smollm2's heads have 27 to 71"
    )


@pytest.mark.parametrize(
    ("draft", "repeat", "message"),
    [
        ("lookup", 1, "no head or model whose guesses could be checked: name one with --draft"),
        ("eagle", 1000, "the prompt: .* exceed the target's"),
    ],
)
def test_what_cannot_be_checked_is_refused(draft: str, repeat: int, message: str) -> None:
    pair = load_pair("tiny", draft=draft, dtype=torch.float32)
    with pytest.raises(InputError, match=message):
        first_guess(pair, pair.tokenizer(TEXT * repeat).input_ids)


@pytest.mark.slow
@pytest.mark.parametrize(("taps", "low"), [("", False), ("+taps=1,2,3", True)])
def test_wrong_layers_show(taps: str, low: bool) -> None:
    """smollm2's own head, and the same with the first layers' states in place of those that it was trained on."""
    pair = load_pair("smollm2", draft=f"eagle3{taps}")
    (ids,) = encode(pair, ["Why is the sky blue?"])
    assert ("wrong layers" in first_guess(pair, ids).line) == low
