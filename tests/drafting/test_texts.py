"""Texts are what the target would generate alone, and a folder of them says which are for validation."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from c2t.drafting import texts
from c2t.drafting.library import VALIDATION, Library, held_out
from c2t.errors import InputError
from c2t.models.target.target import Target
from tests.drafting.targets import END, small_target
from tests.rounding import assert_same_sums

ASKED = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]]
ENDS = frozenset({END})


@pytest.fixture(scope="module")
def target() -> Target:
    return small_target()


def test_greedy_texts_are_those_of_generate(target: Target) -> None:
    found = texts.write(target, ASKED, 0.0, 12, 0, ENDS)
    alone = LlamaForCausalLM(target.model.config).double()
    alone.load_state_dict(target.model.state_dict())
    alone.set_attn_implementation("sdpa")
    alone.generation_config.eos_token_id = END
    for ids, asked in zip(found.ids.split(found.lengths.tolist()), ASKED, strict=True):
        wanted = alone.generate(torch.tensor([asked]), max_new_tokens=12, do_sample=False)[0]
        assert ids.tolist() == wanted.tolist()
    answers = [ids[len(asked) :] for ids, asked in zip(found.ids.split(found.lengths.tolist()), ASKED, strict=True)]
    assert found.best.equal(torch.cat(answers))
    assert found.questions.tolist() == [len(asked) for asked in ASKED]


def test_states_are_those_of_one_forward_over_the_text(target: Target) -> None:
    found = texts.write(target, ASKED, 1.0, 12, 0, ENDS)
    per_text = (found.ids, found.features, found.taps)
    assert len(set(found.lengths.tolist())) > 1  # texts end at different places, so rows left the batch
    for ids, features, taps in zip(*(part.split(found.lengths.tolist()) for part in per_text), strict=True):
        mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
        out = target.model.model(ids[None], output_hidden_states=True, attention_mask=mask)
        assert_same_sums(features[:-1], out.last_hidden_state[0, :-1])
        wanted = torch.cat([out.hidden_states[layer][0, :-1] for layer in (2, 3, 4)], -1)
        assert_same_sums(taps[:-1], wanted)


def test_writing_stops_when_few_go_on(target: Target) -> None:
    found = texts.write(target, ASKED, 0.0, 50, 4, ENDS)
    assert (found.lengths - found.questions).tolist() == [1] * 4


def test_writing_stops_at_the_deadline(target: Target) -> None:
    found = texts.write(target, ASKED, 0.0, 50, 0, frozenset(), deadline=0.0)
    assert (found.lengths - found.questions).tolist() == [1] * 4


def test_a_folder_of_texts_is_read_back(target: Target, tmp_path: Path) -> None:
    """Ids beyond 16 bits are what they were; a question for validation is left out with all its answers."""
    written = texts.write(target, [[number % 40 + 3, 7] for number in range(40)], 0.0, 8, 0, ENDS)
    written = written._replace(ids=written.ids + 70_000)
    turns = [f"question {number}" for number in range(40)]
    first = Library(tmp_path, taps=True)
    for temperature in (0.0, 1.0):
        first.add(written, turns, "given", temperature)
    for library in (first, Library(tmp_path, taps=True)):
        assert library.number == 2
        assert library.asked["given", 1.0] == 40
        assert torch.cat([text.ids for text in library.texts[:40]]).equal(written.ids.int())
        for text, whole in zip(library.texts, written.features.split(written.lengths.tolist()), strict=False):
            assert text.features.equal(whole[:-1].bfloat16())
        assert {text.turn for text in library.validation} == held_out(turns)
        assert len(library.validation) == 2 * len(held_out(turns))
        assert library.written == 2 * int((written.lengths - written.questions).sum())
        assert library.texts[0].inputs.shape[1] == 3 * library.texts[0].features.shape[1]
    for text in Library(tmp_path, taps=False).texts:  # a kind that reads features, after one that reads taps
        assert text.inputs.equal(text.features)
    Library(tmp_path / "features", taps=False).add(written, turns, "given", 0.0)
    assert Library(tmp_path / "features", taps=True).texts == []


def test_all_kinds_of_heads_leave_out_the_same_questions(target: Target, tmp_path: Path) -> None:
    """One kind begins from another's head, which may have learned from shards without taps."""
    turns, asked = [f"question {number}" for number in range(40)], [[number + 3, 7] for number in range(40)]
    Library(tmp_path, taps=False).add(texts.write(target, asked, 0.0, 8, 0, ENDS), turns, "given", 0.0)
    tapped = Library(tmp_path, taps=True)
    tapped.add(texts.write(target, asked[5:], 0.0, 8, 0, ENDS), turns[5:], "given", 0.0)
    left_out = {text.turn for text in Library(tmp_path, taps=False).validation}
    assert {text.turn for text in tapped.validation} == left_out - {*turns[:5]}


def test_what_was_learned_from_is_not_judged_by_when_shards_go_and_come(target: Target, tmp_path: Path) -> None:
    turns = [f"question {number}" for number in range(64)]
    written = texts.write(target, [[3, 7]] * 16, 0.0, 2, 0, ENDS)
    library = Library(tmp_path, taps=False)
    for begin in range(0, 64, 16):
        library.add(written, turns[begin : begin + 16], "given", 0.0)
    out = {text.turn for text in library.validation}
    (tmp_path / "00001.safetensors").unlink()
    assert {text.turn for text in Library(tmp_path, taps=False).validation} == out - {*turns[16:32]}
    library.add(written, [f"another {number}" for number in range(16)], "given", 0.0)
    assert {text.turn for text in library.validation if text.turn in turns} == out
    many = [f"question {number}" for number in range(4096)]
    assert abs(len(held_out(many)) - VALIDATION * len(many)) < 6 * (VALIDATION * len(many)) ** 0.5


def test_texts_are_for_both_whatever_was_asked_for_other_kinds_of_heads(target: Target, tmp_path: Path) -> None:
    turns = [f"question {number}" for number in range(60)]
    written = texts.write(target, [[3, 7]] * 60, 0.0, 2, 0, ENDS)
    Library(tmp_path, taps=False).add(written, turns, "given", 0.0)
    few = texts.write(target, [[3, 7]] * 2, 0.0, 2, 0, ENDS)
    for number in range(3):
        tapped = Library(tmp_path, taps=True)
        tapped.add(few, [f"other {number}", f"another {number}"], "given", 0.0)
        assert tapped.learned
        assert tapped.validation


def test_few_questions_are_for_both() -> None:
    """Whatever their hashes are; one alone is to learn from."""
    for number in range(50):
        one, two = f"one {number}", f"two {number}"
        assert held_out([one]) == held_out([]) == set()
        assert len(held_out([one, two, one])) == 1


def test_the_tokens_that_all_texts_begin_with_are_counted(target: Target, tmp_path: Path) -> None:
    library = Library(tmp_path, taps=False)
    library.add(texts.write(target, [[5, 6, 7, 8], [5, 6, 9, 8]], 0.0, 8, 0, ENDS), ["a", "b"], "given", 0.0)
    assert library.shared == 2


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    save_file({"ids": torch.zeros(3)}, tmp_path / "00000.safetensors", {"source": "given"})
    with pytest.raises(InputError, match=r"00000\.safetensors: not a shard"):
        Library(tmp_path, taps=False)
