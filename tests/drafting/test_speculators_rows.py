"""Rows as speculators stores them, written here by pyarrow and safetensors alone, are texts that a head learns from;
whatever is wrong in them is one line before anything is written."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from c2t.drafting import learner, speculators_rows, texts, train
from c2t.drafting.kinds import KINDS
from c2t.drafting.library import Library
from c2t.drafting.questions import encoded
from c2t.drafting.rows import best_of, rows_of
from c2t.drafting.speculators_rows import SpeculatorsRows, question_in_words
from c2t.drafting.train import DraftSettings
from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.models.loading.trained import find_trained
from c2t.models.target.target import Target
from tests.drafting.targets import END, in_float32, small_target
from tests.rounding import ROUNDINGS, assert_same_sums, assert_within, growth

LAYERS = (2, 3, 4, 7)  # the default of launch_vllm.py for seven layers
Rows = list[tuple[list[int], list[int]]]


def states_of(model: PreTrainedModel, ids: list[int], layers: tuple[int, ...]) -> Tensor:
    """The residual stream at the inputs of layers, and before the final norm for the number of layers."""
    inputs = {}
    modules = [*model.model.layers, model.model.norm]
    hooks = [
        module.register_forward_pre_hook(lambda _, args, layer=layer: inputs.update({layer: args[0][0]}))
        for layer, module in enumerate(modules)
    ]
    mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
    with torch.no_grad():
        model(torch.tensor([ids]), attention_mask=mask)
    for hook in hooks:
        hook.remove()
    return torch.stack([inputs[layer] for layer in layers], 1)


def write_stream(file: Path, rows: Rows, compression: str | None = None, **columns: pa.Array | None) -> None:
    """Two record batches, as an Arrow stream. columns: in place of those of the rows, or of none."""
    made = {
        "input_ids": pa.array([ids for ids, _ in rows], pa.list_(pa.int64())),
        "loss_mask": pa.array([mask for _, mask in rows], pa.list_(pa.int64())),
        "seq_len": pa.array([len(ids) for ids, _ in rows]),
    }
    table = pa.table({name: column for name, column in (made | columns).items() if column is not None})
    options, half = pa.ipc.IpcWriteOptions(compression=compression), max(1, len(rows) // 2)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        for start in range(0, len(rows), half):
            writer.write_table(table.slice(start, half))


def write_rows(folder: Path, model: PreTrainedModel, rows: Rows, layers: tuple[int, ...] = LAYERS) -> Path:
    """A dataset of two files, as save_to_disk writes it, and the states of each row."""
    (folder / "hidden_states").mkdir(parents=True)
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (rows[: len(rows) // 2], rows[len(rows) // 2 :]), strict=True):
        write_stream(folder / name, part)
    state = {"_data_files": [{"filename": name} for name in names], "_format_type": "torch", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    for number, (ids, _) in enumerate(rows):
        tensors = {"hidden_states": states_of(model, ids, layers), "token_ids": torch.tensor(ids)}
        save_file(tensors, folder / "hidden_states" / f"hs_{number}.safetensors")
    return folder


def answered(ids: list[int], question: int) -> tuple[list[int], list[int]]:
    return ids, [0] * question + [1] * (len(ids) - question)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return in_float32(small_target())


@pytest.fixture
def pair(small_pair: Pair, model: PreTrainedModel) -> Pair:
    return replace(small_pair, target=Target(model))


def own_texts(target: Target, folder: Path) -> Library:
    """Texts that the target writes."""
    asked = [[number + 3, number % 7 + 3] for number in range(24)]
    found = texts.write(target, asked, 1.0, 12, 0, frozenset({END}))
    library = Library(folder, bool(target.taps))
    library.add(found, [str(ids) for ids in asked], "given", 1.0)
    return library


@pytest.mark.parametrize("kind", ["eagle", "dspark"])
def test_rows_of_the_targets_own_states_are_its_texts(
    kind: str, pair: Pair, model: PreTrainedModel, tmp_path: Path
) -> None:
    pair.target.tap(LAYERS[:3] if KINDS[kind].taps else ())
    library = own_texts(pair.target, tmp_path / "texts")
    rows = [answered(text.ids.tolist(), text.question) for text in library.texts]
    stored = SpeculatorsRows(write_rows(tmp_path / "rows", model, rows), pair, kind)
    assert stored.written == library.written
    assert pair.target.taps == (LAYERS[:3] if KINDS[kind].taps else ())
    written, read = rows_of(library.texts, 1), rows_of(stored.texts, 1)
    assert read.ids.equal(written.ids)
    assert read.judged.equal(written.judged)
    answers = rows_of(stored.texts).judged
    assert best_of(stored.texts, answers).equal(best_of(library.texts, answers))
    for ours, theirs in ((read.features, written.features), (read.inputs, written.inputs)):
        # Shards of texts are in bfloat16.
        assert_within(theirs, ours, growth(2, torch.bfloat16) * ours.abs() + growth(ROUNDINGS) * ours.abs().max())
    assert [text.temperature == 0 for text in stored.texts] == [text.best.equal(text.answer) for text in stored.texts]


def test_a_row_of_several_turns_or_many_tokens_is_several_texts(
    pair: Pair, model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LONGEST": 8, "ANSWER": 3}.items():
        monkeypatch.setattr(speculators_rows, name, value)
    long = [number % 40 + 3 for number in range(16)]
    rows = [(long, [0] * 4 + [1] * 2 + [0] * 2 + [1] * 8), answered([9, 8, 7, 6, 5], 2), answered([30, 31, 32], 0)]
    stored = SpeculatorsRows(write_rows(tmp_path / "rows", model, rows, (7,)), pair, "eagle")
    found = [(text.ids.tolist(), text.question) for text in stored.texts]
    assert found == [
        (long[:6], 4),
        (long[3:11], 5),
        (long[6:14], 5),
        (long[9:16], 5),
        ([9, 8, 7, 6, 5], 2),
        ([30, 31, 32], 1),
    ]
    whole = model.model.norm(states_of(model, long, (7,))[:, 0])
    assert_same_sums(stored.texts[2].features, whole[6:13].detach())
    assert len({text.learned for text in stored.texts[:4]}) == 1


def test_whole_conversations_are_held_out(pair: Pair, model: PreTrainedModel, tmp_path: Path) -> None:
    """Their later turns, which begin with the first question, and other answers to it go with it."""
    first = [answered([number % 40 + 3, number // 40 + 9, 5, 6, number % 11 + 3], 3) for number in range(60)]
    later = [answered([*ids[:3], 9, 8, 7, 7], 6) for ids, _ in first]
    stored = SpeculatorsRows(write_rows(tmp_path / "rows", model, [*later, *first], (7,)), pair, "eagle")
    out = [number % 60 for number, text in enumerate(stored.texts) if not text.learned]
    assert sorted(out) == sorted(2 * [*{*out}])
    assert 0 < len(out) < 60
    assert all(text.turn for text in stored.validation)


def stored(rows: Rows, **how: Any) -> Callable[[Path], None]:
    return lambda folder: write_stream(folder / "data-00000-of-00002.arrow", rows, **how)


def changed(**tensors: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for file in (folder / "hidden_states").iterdir():
            save_file({name: tensors.get(name, lambda x: x)(x) for name, x in load_file(file).items()}, file)

    return change


def named(*entries: object) -> Callable[[Path], Any]:
    return lambda folder: (folder / "state.json").write_text(json.dumps({"_data_files": list(entries)}))


def damaged(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-40])


def no_states(folder: Path) -> None:
    for file in (folder / "hidden_states").iterdir():
        file.unlink()


def infinite(states: Tensor) -> Tensor:
    states[1, 0, 0] = float("inf")
    return states


TWO = [([3, 4, 5], [0, 1, 1])] * 2
FAULTS = {
    "no dataset": (lambda folder: (folder / "state.json").unlink(), "is no dataset on disk (no state.json)"),
    "state.json of another kind": (named(5), "_data_files must be a list of files in this folder"),
    "a file elsewhere": (named({"filename": "../x.arrow"}), "_data_files must be a list of files in this folder"),
    "a missing file": (named({"filename": "x.arrow"}), "x.arrow, which state.json names, is no file"),
    "a cut stream": (damaged("data-00000-of-00002.arrow"), "cannot be read as an Arrow stream"),
    "a compressed stream": (stored([([3] * 99, [1] * 99)], compression="zstd"), "is compressed"),
    "a missing column": (stored(TWO, loss_mask=None), "no column loss_mask, or two"),
    "a column of texts": (stored(TWO, input_ids=pa.array([["a"], ["b"]])), "holds list<"),
    "missing values": (stored(TWO, input_ids=pa.array([[3, None], [3, 4]])), "has missing values"),
    "other lengths": (stored([([3, 4, 5], [0, 1])] * 2), "row 0: 3 input_ids, but 2 of loss_mask"),
    "ids out of range": (stored([([3, 4, 48], [0, 1, 1])] * 2), "row 0: input_ids must be from 0 to 47"),
    "negative ids": (stored([([3, -4, 5], [0, 1, 1])] * 2), "row 0: input_ids must be from 0 to 47"),
    "a mask of other numbers": (stored([([3, 4, 5], [0, 1, 2])] * 2), "row 0: loss_mask must be 0 or 1"),
    "no rows": (named(), "no row has states that teach"),
    "no states": (no_states, "no row has states that teach"),
    "other widths": (changed(hidden_states=lambda x: x[..., :8].contiguous()), "states of 8 numbers; the target's"),
    "too few tokens": (changed(hidden_states=lambda x: x[1:].contiguous()), "the row's must be [5, K, H]"),
    "whole numbers": (changed(hidden_states=lambda x: x.int()), "hidden_states are [5, 4, 32] of I32"),
    "another row's states": (changed(token_ids=lambda x: x + 1), "token_ids are not the row's input_ids"),
    "cut states": (damaged("hidden_states/hs_0.safetensors"), "hs_0.safetensors: cannot be read"),
    "infinite states": (changed(hidden_states=infinite), "states contain NaN or infinity"),
    "another model's states": (changed(hidden_states=torch.randn_like), "is none of the target's"),
    "no last state": (changed(hidden_states=lambda x: x[:, :3].contiguous()), "of layers 2, 3, 4 and serve no kind"),
    "no taps": (changed(hidden_states=lambda x: x[:, 3:].contiguous()), "serve eagle, medusa; dspark needs 2, 3, 4, 7"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_in_rows_is_said(fault: str, pair: Pair, model: PreTrainedModel, tmp_path: Path) -> None:
    rows = [answered([number + 3, number + 4, 5, 6, 7], 3) for number in range(4)]
    folder = write_rows(tmp_path / "rows", model, rows)
    SpeculatorsRows(folder, pair, "dspark")
    change, said = FAULTS[fault]
    change(folder)
    with pytest.raises(InputError) as refused:
        SpeculatorsRows(folder, pair, "dspark")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_question_of_a_row_is_the_users_turn(small_pair: Pair) -> None:
    """It is asked again, in the chat template, to find the fastest tree."""
    tokenizer = copy.deepcopy(small_pair.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}> {{ m.content }} </s>\n{% endfor %}<answer> "
    pair = replace(small_pair, tokenizer=tokenizer, template="chat")
    assert question_in_words(pair, encoded(pair, "The sum of two")) == "The sum of two"
    other = tokenizer("A number is")["input_ids"]
    assert question_in_words(pair, other) == question_in_words(small_pair, other) == "A number is"


def test_one_conversation_is_too_few_and_missing_states_are_counted(
    pair: Pair, model: PreTrainedModel, tmp_path: Path
) -> None:
    rows = [answered([3, 4, 5, 6], 2), answered([3, 4, 5, 7], 2), answered([9, 4, 5, 7], 2)]
    folder = write_rows(tmp_path / "rows", model, rows)
    first, again, other = [text.learned for text in SpeculatorsRows(folder, pair, "eagle").texts]
    assert first == again == (not other)
    (folder / "hidden_states" / "hs_2.safetensors").unlink()
    with (
        pytest.warns(UserWarning, match="1 of 3 rows have no states, and are left out"),
        pytest.raises(InputError, match="fewer than two conversations"),
    ):
        SpeculatorsRows(folder, pair, "eagle")


@pytest.mark.parametrize(
    "kind", ["eagle", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("eagle3", "dspark"))]
)
def test_a_head_learns_from_rows_and_goes_on_with_them(
    kind: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows stay where they are, and a training on others, or on texts, is refused. tiny has the layers that heads
    read."""
    target, layers = home / "checkpoints" / "tiny" / "target", (2,)
    if kind != "eagle":
        target, layers = shutil.copytree(Path("checkpoints/tiny/target"), tmp_path / "target"), (2, 4, 5, 8)
    pair = load_pair(target=target, draft="lookup", dtype=torch.float32)
    asked = [[number + 3, number % 7 + 9, 5] for number in range(30)]
    found = texts.write(pair.target, asked, 0.0, 12, 0, frozenset())
    rows = [answered(ids.tolist(), 3) for ids in found.ids.split(found.lengths.tolist())]
    data = write_rows(tmp_path / "rows", pair.target.model, rows, layers)
    clock = SimpleNamespace(monotonic=lambda ticks=count(): 0.01 * next(ticks))  # a step takes the same time everywhere
    for module in (train, learner):
        monkeypatch.setattr(module, "time", clock)
    done = train.train(pair, target / "c2t", {}, DraftSettings(kind=kind, minutes=0.02), data=data)
    assert done.progress.steps > 0
    assert 0 < done.progress.judged < 30
    assert done.written == 30 * 12
    assert find_trained(target) == done.head
    assert not (target / "c2t" / train.TEXTS).exists()
    more = train.train(pair, target / "c2t", {}, DraftSettings(kind=kind, minutes=0.04), data=data)
    assert more.progress.steps > done.progress.steps
    for other in (None, write_rows(tmp_path / "others", pair.target.model, rows, layers)):
        with pytest.raises(InputError, match=f"learned from the rows in {data}: go on so, or choose another --out"):
            train.train(pair, target / "c2t", {}, DraftSettings(kind=kind, minutes=0.06), data=other)


def test_wrong_rows_leave_nothing_behind(home: Path, tmp_path: Path) -> None:
    target = home / "checkpoints" / "tiny" / "target"
    with pytest.raises(InputError, match="is no dataset on disk"):
        train.train(load_pair(target=target, draft="lookup"), target / "c2t", {}, data=tmp_path)
    assert not (target / "c2t").exists()
