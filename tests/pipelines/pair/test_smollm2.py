"""smollm2's texts are what the target would write alone, its rows judge answers only, its heads learn and resume."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.models.eagle import EagleHead
from c2t.models.eagle_checkpoint import load_head
from c2t.models.gguf_target import END
from c2t.models.target import Target
from pipelines.pair.smollm2 import heads, shards, texts
from pipelines.pair.smollm2.card import write_card
from pipelines.pair.smollm2.questions import RUN, Left, code_tasks, functions

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
ASKED = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]]


@pytest.fixture(scope="module")
def target() -> Target:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, vocab_size=48, num_hidden_layers=7, eos_token_id=END, initializer_range=0.3)
    loaded = Target(LlamaForCausalLM(config).double().requires_grad_(False))
    loaded.tap((2, 3, 4))
    return loaded


def test_greedy_texts_are_those_of_generate(target: Target) -> None:
    found = texts.write(target, ASKED, 0.0, 12, 0)
    alone = LlamaForCausalLM(target.model.config).double()
    alone.load_state_dict(target.model.state_dict())
    alone.set_attn_implementation("sdpa")
    alone.generation_config.eos_token_id = END
    for ids, asked in zip(found.ids.split(found.lengths.tolist()), ASKED, strict=True):
        wanted = alone.generate(torch.tensor([asked]), max_new_tokens=12, do_sample=False)[0]
        assert ids.tolist() == wanted.tolist()
    assert found.questions.tolist() == [len(asked) for asked in ASKED]


def test_states_are_those_of_one_forward_over_the_text(target: Target) -> None:
    found = texts.write(target, ASKED, 1.0, 12, 0)
    per_text = (found.ids, found.features, found.taps)
    assert len(set(found.lengths.tolist())) > 1  # texts end at different places, so rows left the batch
    for ids, features, taps in zip(*(part.split(found.lengths.tolist()) for part in per_text), strict=True):
        mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
        out = target.model.model(ids[None], output_hidden_states=True, attention_mask=mask)
        torch.testing.assert_close(features[:-1], out.last_hidden_state[0, :-1])
        wanted = torch.cat([out.hidden_states[layer][0, :-1] for layer in (2, 3, 4)], -1)
        torch.testing.assert_close(taps[:-1], wanted)


def test_writing_stops_when_few_go_on(target: Target) -> None:
    found = texts.write(target, ASKED, 0.0, 50, 4)
    assert (found.lengths - found.questions).tolist() == [1] * 4


def test_shards_take_turns_and_greedy_questions_are_asked_once() -> None:
    made = [texts.shard_of(number) for number in range(24)]
    assert len({shard[:2] for shard in made[:12]}) == 12
    assert [shard.turn for shard in made] == [0] * 12 + [1] * 12
    known = {"code": [str(number) for number in range(100)]}
    turns = [texts.asked_in(texts.Shard("code", 0.0, turn), known) for turn in range(3)]
    assert turns[0] + turns[1] == known["code"]
    assert turns[2] == []
    assert len(texts.asked_in(texts.Shard("code", 1.0, 2), known)) == texts.BATCH


def test_bench_questions_are_left_out() -> None:
    bench = "If Ann has 3 apples and Bob has 4 more than Ann, how many apples has Bob?"
    left = Left([bench])
    assert bench.upper().replace(",", " --") not in left
    assert "apples and Bob has 4 more than Ann" not in left  # a part
    assert f"Tell me. {bench} Say why." not in left
    run = " ".join(bench.split()[:RUN])
    assert f"{run} or so he says to nobody in particular today" not in left
    assert f"{' '.join(bench.split()[: RUN - 1])} or so he says" in left
    assert "" not in left


@pytest.mark.slow
def test_code_tasks_come_from_docstrings(tmp_path: Path) -> None:
    said = "Return what is asked, " * 5
    path = tmp_path / "module.py"
    path.write_text(
        f'def short():\n    """No."""\n\ndef asked(a, *, b=1):\n    """{said}\n\n    More.\n    """\n    return a\n'
    )
    assert functions(path) == [f'def asked(a, *, b=1):\n    """{said.strip()}\n\n    More.\n    """\n']
    assert len(code_tasks()) > 1000


def text_of(ids: list[int], question: int, source: str = "code") -> shards.Text:
    states = torch.randn(len(ids) - 1, SIZES["hidden_size"])
    return shards.Text(torch.tensor(ids, dtype=torch.int32), question, states, source, 0.0)


def test_rows_judge_the_answers_positions_only() -> None:
    rows = shards.rows_of([text_of([3, 4, 5, 6, 7, END], 3), text_of([3, 4, END], 1)])
    # Slot j predicts state j + 1, from which token j + 2 is drawn: the answer's tokens begin at place `question`.
    assert rows.answer.tolist() == [[False, True, True, True], [True, False, False, False]]
    assert rows.ids.shape == (2, 6)
    assert rows.states.shape == (2, 5, SIZES["hidden_size"])


def test_a_question_is_held_out_with_all_its_answers() -> None:
    held = [number for number in range(500) if text_of([number, 1, 2], 2).held]
    assert 5 <= len(held) <= 60
    assert all(text_of([number, 1, 9, 9], 2).held for number in held)


def new_head(target: Target) -> EagleHead:
    """On a copy of the embedding in float32, as training has it."""
    model = LlamaForCausalLM(target.model.config).requires_grad_(False)
    model.load_state_dict(target.model.state_dict())
    return heads.new_head(model)


def test_padding_changes_no_loss(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "NOISE", 0.0)
    monkeypatch.setattr(heads, "JUDGED", 1.0)
    head, lm_head = new_head(target), target.lm_head.weight.float()
    one, other = text_of([3, 4, 5, 6, 7, 8, 9], 3), text_of([9, 8, 7, 6], 2)
    together = heads.losses(head, lm_head, shards.rows_of([one, other]))
    alone = [heads.losses(head, lm_head, shards.rows_of([text])) for text in (one, other)]
    counts = [4, 2]
    for name, value in enumerate(together):
        wanted = sum(n * losses[name].item() for n, losses in zip(counts, alone, strict=True)) / sum(counts)
        assert math.isclose(value.item(), wanted, rel_tol=2e-2 if heads.BF16 else 1e-5)


def test_answers_are_predicted_as_by_the_whole_head(target: Target) -> None:
    head, rows = new_head(target), shards.rows_of([text_of([3, 4, 5, 6, 7, 8, 9], 3), text_of([9, 8, 7, 6], 2)])
    whole = head(rows.states[:, :-1], rows.ids[:, 1:-1])
    torch.testing.assert_close(heads.predicted(head, rows, 0.0), whole[rows.answer])


@pytest.mark.slow
def test_a_head_learns_resumes_and_is_saved_with_a_card(target: Target, tmp_path: Path) -> None:
    """Two rounds, the second from the first one's checkpoint; a round that is finished is not done again."""
    asked = [[number % 40 + 3, number // 40 + 3, 7] for number in range(96)]
    written = texts.write(target, asked, 0.0, 24, 0)
    written = written._replace(features=written.features.float())
    for folder, source in (("texts", "code"), ("bench", "gsm8k")):
        (tmp_path / folder).mkdir()
        texts.save(written, texts.Shard(source, 0.0, 0), 1.0, tmp_path / folder / "00000.safetensors")
    (tmp_path / "texts" / "questions.json").write_text(json.dumps({"kept": {"code": 96}, "gone": {"code": 1}}))
    lm_head = target.lm_head.weight.float()
    for positions in (10_000, 20_000):
        head = new_head(target)
        assert heads.round_begin(tmp_path / "draft") == positions - 10_000
        heads.train_until(positions, head, lm_head, tmp_path / "texts", tmp_path / "draft")
        heads.finish_round(head, lm_head, 2000, positions, *(tmp_path / name for name in ("texts", "bench", "draft")))
    first, second = heads.rounds(tmp_path / "draft")
    assert second["bench"]["gsm8k"] > first["bench"]["gsm8k"] > 1 / 48
    assert 0 <= second["heldout"]["code"] <= 1
    log = [line.split(",") for line in (tmp_path / "draft" / "log.csv").read_text().splitlines()]
    steps = [int(line[0]) for line in log[1:]]
    assert steps == sorted(set(steps))  # the second round goes on with the first one's steps
    heads.save_draft(head, tmp_path / "draft")
    loaded = load_head(tmp_path / "draft", target.embed_tokens.to(torch.bfloat16))
    target.model.double()  # the cast above is in place
    assert torch.equal(loaded.fc.weight, head.fc.weight.bfloat16())
    write_card(tmp_path, tmp_path)
    assert (
        f"| 2,000 | 20,000 | {second['heldout']['code']:.3f} | {second['bench']['gsm8k']:.3f} |"
        in (tmp_path / "README.md").read_text()
    )
