"""What smollm2's target writes by the thousand is what it writes alone; heads learn from ids as from stored states."""

import json
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.errors import InputError
from c2t.models.eagle_checkpoint import load_head
from c2t.models.gguf_target import END
from c2t.models.target import Target
from pipelines.pair.smollm2 import block, device_texts, device_training, on_device, rounds, shards, texts, writer
from pipelines.pair.smollm2.device_llama import DeviceLlama
from pipelines.pair.smollm2.questions import Left
from pipelines.pair.smollm2.writer import Writer
from tests.marks import slow_except
from tests.rounding import assert_same_sums

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
ASKED = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, vocab_size=48, num_hidden_layers=7, eos_token_id=END, initializer_range=0.3)
    return LlamaForCausalLM(config).requires_grad_(False)


@pytest.fixture(scope="module")
def llama(target: LlamaForCausalLM) -> DeviceLlama:
    return DeviceLlama(target, CPU, torch.float32)


class Numbers:
    """A tokenizer whose text is the ids themselves."""

    def apply_chat_template(self, messages: list[dict], add_generation_prompt: bool = False, tokenize: bool = True):
        return f"1 4 {messages[0]['content']} <|im_end|> 3" + " 1 5" * add_generation_prompt

    def __call__(self, text: str, **_options):
        return SimpleNamespace(input_ids=[int(word) for word in text.replace("<|im_end|>", str(END)).split()])

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def test_greedy_texts_are_those_of_generate(
    target: LlamaForCausalLM, llama: DeviceLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is in the batch, and whatever the batch before has left in the cache."""
    monkeypatch.setattr(writer, "SLOTS", 4)
    monkeypatch.setattr(writer, "READ_AT_ONCE", 3)
    target.generation_config.eos_token_id = END
    room = Writer(llama, 6, 26)
    for asked in (ASKED, [*reversed(ASKED), [20, 21]]):
        found = room.write(asked, [0.0] * len(asked), 20, 0)
        for ids, question in zip(found, asked, strict=True):
            wanted = target.generate(torch.tensor([question]), max_new_tokens=20, do_sample=False)[0]
            assert ids == wanted.tolist()
    assert len({len(ids) for ids in found}) > 2  # some ended early


@pytest.mark.gpu
def test_graphs_write_what_steps_write(target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SLOTS", 8)
    rooms = [Writer(DeviceLlama(target, torch.device("cuda"), torch.float32), 6, 32) for _ in range(2)]
    rooms[1].pool = None
    found = [room.write(ASKED, [0.0] * 4, 24, 0) for room in rooms]
    assert found[0] == found[1]
    assert any(rooms[0].graphs.values())


def test_tokens_are_drawn_by_their_probabilities() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0]).expand(40_000, -1)
    temperatures = torch.tensor([0.5, 1.0]).repeat_interleave(20_000)[:, None]
    drawn = writer.draw(logits.clone(), temperatures).view(2, -1)
    for tokens, temperature in zip(drawn, (0.5, 1.0), strict=True):
        expected = 20_000 * (logits[0] / temperature).softmax(-1)
        found = tokens.bincount(minlength=4)
        assert ((found - expected) ** 2 / expected).sum() < 16.3  # chi-square of 3 degrees: 0.1 % are above
    assert (writer.draw(logits.clone(), torch.zeros(40_000, 1)) == 3).all()


def test_each_text_has_a_temperature_of_its_own(llama: DeviceLlama) -> None:
    room = Writer(llama, 64, 24)
    found = room.write([[5, 6, 7]] * 64, [0.0, 1.0] * 32, 20, 0)
    assert len({tuple(ids) for ids in found[::2]}) == 1
    assert len({tuple(ids) for ids in found[1::2]}) > 20
    for ids in found:
        assert END not in ids[3:-1]
        assert ids[-1] == END or len(ids) == 23


def test_writing_stops_when_few_go_on(llama: DeviceLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CHECKED", 2)
    found = Writer(llama, 4, 50).write(ASKED, [0.0] * 4, 40, 4)
    assert max(len(ids) - len(asked) for ids, asked in zip(found, ASKED, strict=True)) == 2


def test_rows_have_the_states_of_the_stored_ones(target: LlamaForCausalLM, llama: DeviceLlama) -> None:
    torch.manual_seed(0)
    tapped = Target(target)
    tapped.tap((2, 3, 4))
    stored = texts.write(tapped, ASKED, 1.0, 12, 0)
    tapped.tap(())
    lengths = stored.lengths.tolist()
    parts = (part.split(lengths) for part in (stored.ids.int(), stored.features, stored.taps))
    known = [
        shards.Text(ids, len(asked), features[:-1], taps[:-1], "code", 1.0)
        for asked, ids, features, taps in zip(ASKED, *parts, strict=True)
    ]
    nothing = torch.empty(0, 0)
    bare = [text._replace(features=nothing, taps=nothing) for text in known]
    for inputs in ("taps", "features"):
        wanted = shards.rows_of(known, inputs, questions=True)
        found = device_training.rows_on(llama, bare, inputs, questions=True)
        assert found.ids.equal(wanted.ids)
        assert found.judged.equal(wanted.judged)
        for row, length in enumerate(lengths):  # what stands behind a text's end is read by none of it
            for name in ("inputs", "features"):
                ours, theirs = (getattr(rows, name)[row, : length - 1] for rows in (found, wanted))
                assert_same_sums(ours, theirs)


def test_a_greedy_answer_is_written_once() -> None:
    pool = device_texts.Pool([[number] for number in range(10)])
    asked = [each for _ in range(8) for each in pool.take(7)]
    assert Counter(each.ids[0] for each in asked if each.temperature == 0) == dict.fromkeys(range(10), 1)
    assert {each.temperature for each in asked[30:]} == {0.7, 1.0}
    assert [each.ids[0] for each in asked[:12]] == [*range(10), 0, 1]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes for the toy target, and questions without files."""
    known = {
        name: [f"{10 + n} {20 + k}" for n in range(30)] for k, name in enumerate(("code", "gsm8k", "instructions"))
    }
    monkeypatch.setattr(device_texts, "questions", lambda _: (known, {}, Left(["7 7"])))
    for name, value in {
        "ROWS": 24,
        "FEW": 3,
        "QUESTION_TOKENS": 32,
        "ANSWER_TOKENS": 24,
        "INVENTED_TOKENS": 24,
    }.items():
        monkeypatch.setattr(device_texts, name, value)
    monkeypatch.setattr(device_training, "POSITIONS", 400)
    monkeypatch.setattr(device_training, "LOG", 5)
    monkeypatch.setattr(device_training, "WARMUP", 3)
    monkeypatch.setattr(rounds, "FREQUENT", 40)
    monkeypatch.setattr(rounds, "DRAWN", 2)
    monkeypatch.setattr(block, "ANCHORS", 4)
    for module in (device_texts, device_training):  # a second passes whenever somebody looks
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=count().__next__))


def test_texts_of_all_sources_are_written_and_read(llama: DeviceLlama, tmp_path: Path, small: None) -> None:
    del small
    device_texts.write_texts(24.0, llama, Numbers(), tmp_path, tmp_path / "texts", 0)
    found = list(device_texts.read_ids(tmp_path / "texts"))
    written = device_texts.counted(found)
    assert set(written["answers"]) <= set(device_texts.SHARES)
    assert written["answers"]["invented"] >= max(written["answers"].values())
    assert sum(written["tokens"].values()) == sum(len(text.ids) - text.question for text in found)
    for text in found:
        assert text.ids[: text.question].tolist()[-3:] == [3, 1, 5]
        assert 1 <= len(text.ids) - text.question <= 24
    turns = [tuple(text.ids[: text.question].tolist()) for text in found if text.source == "invented"]
    assert len(set(turns)) == len(turns)


def learning(target: LlamaForCausalLM, llama: DeviceLlama, out: Path) -> device_training.Learning:
    asked = [device_texts.Asked([number % 40 + 3, number // 40 + 3, 7], 0.0) for number in range(96)]
    written = Writer(llama, 96, 30).write([each.ids for each in asked], [0.0] * 96, 24, 0)
    (out / "texts").mkdir(parents=True)
    device_texts.save_ids(written, asked, "code", out / "texts" / "code.safetensors")
    found = list(device_texts.read_ids(out / "texts"))
    assert [text.ids.tolist() for text in found] == written
    held = [text for text in found if text.held]
    learned = [text for text in found if not text.held]
    return device_training.Learning(llama, target, learned, held, held, out / "pair", out)


def test_batches_have_every_text_once_and_no_more_positions(
    target: LlamaForCausalLM, llama: DeviceLlama, tmp_path: Path, small: None
) -> None:
    del small
    learned = learning(target, llama, tmp_path).learned
    batches = device_training.batches_of(learned, 400, 3)
    assert sorted(id(text) for batch in batches for text in batch) == sorted(map(id, learned))
    assert all(len(batch) * max(len(text.ids) for text in batch) <= 400 for batch in batches)


@pytest.mark.parametrize("name", slow_except(device_training.RECIPES, "medusa"))
def test_a_head_learns_from_ids_and_is_saved(
    name: str, target: LlamaForCausalLM, llama: DeviceLlama, tmp_path: Path, small: None
) -> None:
    """The Medusa-style head behind the EAGLE-1 head that was trained before it; another run begins from the pair."""
    del small
    known = learning(target, llama, tmp_path)
    if name == "medusa":
        device_training.train("eagle", 4.0, known)
    report = device_training.train(name, 60.0, known)
    log = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    first, last = log[0]["cross_entropy"], log[-1]["cross_entropy"]
    assert last < first or name == "medusa"  # whose depth 0 does not learn
    assert report["positions"] == log[-1]["positions"] > 0
    assert 0 <= report["after"]["heldout"]["code"] <= 1
    part = tmp_path / device_training.RECIPES[name].part
    saved = load_head(part, target.model.embed_tokens, target.lm_head)
    again, tokens = device_training.begun(name, known._replace(pair=tmp_path))
    assert tokens.equal(saved.tokens)
    for key, weight in rounds.trained_of(again).items():
        assert weight.equal(saved.get_parameter(key)), key


def test_a_block_is_judged_behind_every_slot(target: LlamaForCausalLM, llama: DeviceLlama, tmp_path: Path) -> None:
    known = learning(target, llama, tmp_path)
    head = block.new_block(target)
    rows = device_training.rows_on(llama, known.learned[:5], "taps", questions=False)
    found = device_training.block_first_states(head, rows)
    text, slot = rows.judged.nonzero(as_tuple=True)
    alone = [block.block_states(head, rows, (slot[at] + 1).expand(5, 1))[text[at], 0, 1] for at in range(len(slot))]
    assert_same_sums(found, torch.stack(alone))


def test_the_command_says_what_it_cannot_train() -> None:
    assert on_device.wanted("eagle3:150") == ("eagle3", 150.0)
    for spec in ("eagle4:3", "eagle3", "eagle3:soon"):
        with pytest.raises(InputError, match="must be NAME:SECONDS"):
            on_device.wanted(spec)
