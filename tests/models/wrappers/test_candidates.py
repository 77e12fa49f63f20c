"""`+candidates=K`: every node against a chain of steps over its depth's K candidates, exact decoding, wrong numbers."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from c2t.errors import InputError
from c2t.models.loading.load import load_draft
from c2t.models.loading.names import parse
from c2t.models.wrappers.candidates import LimitedDraft, with_candidates
from c2t.policies import Eagle2
from tests.block_reference import after_path, block_states
from tests.models.drafts.test_block import TARGET, read_by
from tests.models.drafts.test_dspark import DFLASH2, FORM, FORMS, KEPT, SIZE, draft_of, expanded, saved
from tests.models.drafts.test_medusa import assert_greedy_text_and_replay, assert_law_is_kept
from tests.rounding import assert_same_sums
from tests.toys import PROMPTS, VOCABULARY, path_of

K = 5
SEQUENTIAL = ("vanilla", "gated", "rnn", "domino", "domino in place", "in place", "own vocabulary")


def limited(name: str = "vanilla", k: int = K) -> LimitedDraft:
    return with_candidates(draft_of(*FORMS[name]), float(k), Path(), TARGET)


@torch.no_grad()
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_every_node_shares_its_probability_among_the_candidates_of_its_depth(name: str) -> None:
    draft, texts = limited(name), [PROMPTS[1], PROMPTS[3]]
    head = draft.bare.head
    read_out = TARGET.lm_head.weight if head.tokens is None else TARGET.lm_head.weight[head.tokens]
    tree, slots, found = expanded(draft, texts, SIZE + 1)
    for row, text in enumerate(texts):
        states = block_states(head, read_by(text)[:-1], text[-1])
        for slot in slots[row].tolist():
            path, seen = [text[-1], *path_of(tree, row, slot)], found.log_probs[row, slot]
            seen = seen if head.tokens is None else seen[head.tokens]
            if len(path) > SIZE:
                assert seen.unique().numel() == 1  # below the last depth all tokens are equal
                continue
            base = read_out @ states[len(path) - head.form.from_anchor]
            others = torch.ones_like(base).bool().index_fill(0, base.topk(K).indices, False)
            logits, _ = after_path(head, states, path, read_out)
            wanted: Tensor = logits.masked_fill(others, float("-inf")).log_softmax(0)
            assert seen.isinf().equal(others)
            assert_same_sums(seen.float(), wanted, 200)  # norms are in float32


@torch.no_grad()
@pytest.mark.parametrize(("name", "tokens"), [("vanilla", VOCABULARY), ("own vocabulary", len(KEPT))])
def test_as_many_candidates_as_tokens_are_no_limit(name: str, tokens: int) -> None:
    for k in (tokens, tokens + 1):
        _, _, found = expanded(limited(name, k), [PROMPTS[1]], 2)
        _, _, exact = expanded(draft_of(*FORMS[name]), [PROMPTS[1]], 2)
        assert found.logits.equal(exact.logits)
    assert limited(name, tokens - 1).bare.candidates == tokens - 1


@pytest.mark.parametrize("name", ["vanilla", pytest.param("rnn", marks=pytest.mark.slow)])
def test_greedy_text_is_the_targets_and_replay_its_rounds(name: str) -> None:
    """Also where a tree has fewer candidates than it asks for, and with n-grams."""
    assert_greedy_text_and_replay(TARGET, limited(name), Eagle2(K=12, levels=3, N=40))


@pytest.mark.slow
def test_sampled_trees_keep_the_law() -> None:
    assert_law_is_kept(limited(k=8), TARGET)


def test_the_name_says_how_many(tmp_path: Path) -> None:
    folder = saved(tmp_path / "dspark")
    draft = load_draft(f"{folder}+anchor=yes+candidates={K}+ngrams", copy.deepcopy(TARGET))
    assert draft.bare.candidates == K
    assert draft.reads_path
    assert draft.bare.realigned().candidates == K  # of `c2t info --check`
    assert draft.draft.mark == str(K) != limited(k=K + 1).mark
    for ending, line in (
        ("=0", r"\+candidates=0: .* whole and at least 1"),
        ("=2.5", "whole and at least 1"),
        ("=nan", "whole and at least 1"),
        ("=many", r"write \+candidates=K with a number"),
        ("", r"write \+candidates=K with a number"),
    ):
        with pytest.raises(InputError, match=line):
            parse(f"{folder}+candidates{ending}")


@pytest.mark.parametrize("form", [replace(FORM, markov_rank=0, confidence_reads_token=False), DFLASH2])
def test_heads_without_a_bias_are_refused(form, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\+candidates is for DSpark's and Domino's heads"):
        load_draft(f"{saved(tmp_path, form)}+candidates={K}", copy.deepcopy(TARGET))
