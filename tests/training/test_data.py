"""Which rows the network sees: split by conversation, negatives drawn anew, NaN left out."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from c2t.classifier import features
from c2t.errors import InputError
from c2t.records.reader import describe, read_columns, read_records
from c2t.training.data import FEWEST, NegativeSampling, NodeData, conversation_names, split_conversations
from c2t.training.settings import MODELS, TrainSettings
from tests.harvests import PROVENANCE, make_harvest

SMALL = {"K": 3, "levels": 3}


def sampling(pos: int = 10, neg: int = 500, **settings) -> NegativeSampling:
    """Row i has the feature i; the first rows are the positives, and row 0 is not used."""
    rows = 1 + pos + neg
    x = torch.arange(rows, dtype=torch.float32)[:, None]
    accepted = torch.arange(rows) <= pos
    return NegativeSampling(x, accepted, torch.arange(rows) > 0, TrainSettings(**settings))


def epoch(data: NegativeSampling) -> list[int]:
    return torch.cat([x for x, _ in data])[:, 0].int().tolist()


def test_every_pass_has_all_positives_and_other_negatives() -> None:
    data = sampling(10, 500, negatives=3, min_steps=0)
    first, second = epoch(data), epoch(data)
    for rows in (first, second):
        assert len(rows) == len(set(rows)) == 40 == data.rows
        assert set(range(1, 11)) <= set(rows)
    overlap = {row for row in first if row > 10} & {row for row in second if row > 10}
    assert len(overlap) < 15  # two draws of 30 from 500 share 1.8 on average
    assert data.negatives_kept == 30 / 500


def test_negatives_come_from_the_whole_training_set() -> None:
    data = sampling(10, 200, min_steps=0)
    seen = Counter(row for _ in range(200) for row in epoch(data) if row > 10)
    assert len(seen) == 200
    assert max(seen.values()) < 30  # 10 on average


def test_labels_belong_to_their_rows_and_passes_are_shuffled() -> None:
    """The same seed draws the same ones."""
    data = sampling(100, 100, min_steps=0)
    for x, accepted in data:
        assert torch.equal(accepted, (x[:, 0] <= 100).float())
        assert 20 < accepted[:100].sum() < 80
    assert epoch(sampling(seed=3)) == epoch(sampling(seed=3)) != epoch(sampling(seed=4))


@pytest.mark.parametrize("negatives", [0, None])
def test_all_negatives_on_request(negatives: int | None) -> None:
    data = sampling(10, 500, negatives=negatives, min_steps=0)
    assert sorted(epoch(data)) == list(range(1, 511))
    assert data.negatives_kept == 1


def test_small_harvests_make_more_passes() -> None:
    data = sampling(10, 500, epochs=10, batch_size=8, min_steps=2000)  # 20 rows: 3 steps
    assert data.passes == 67
    assert len(list(data)) == len(data) == 67
    assert 10 * sum(-(-len(x) // 8) for x, _ in data) >= 2000
    assert sampling(1000, 5000, epochs=10, batch_size=8, min_steps=2000).passes == 1


def test_chunks_are_whole_batches() -> None:
    data = sampling(3000, 3000, batch_size=10, min_steps=0)
    assert [len(x) for x, _ in data] == [640] * 9 + [240]


@pytest.mark.parametrize(("positives", "negatives", "message"), [(0, 9, "no accepted"), (9, 0, "only accepted")])
def test_one_class_alone_is_refused(positives: int, negatives: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sampling(positives, negatives)


@pytest.mark.parametrize(("count", "fraction"), [(2, 0.1), (3, 1.0), (12, 1.0), (40, 1.0), (1000, 1.0), (1000, 0.1)])
def test_conversations_are_split_into_two_disjoint_parts(count: int, fraction: float) -> None:
    names = [f"{number}" for number in range(count)]
    split = split_conversations(names, 0.05, fraction, seed=0)
    validation = set(split.validation.tolist())
    assert not set(split.train.tolist()) & validation
    fewest = {2: 1, 3: 1, 12: 6, 40: FEWEST, 1000: FEWEST}[count]
    assert len(validation) == fewest if count < 1000 else fewest < len(validation) < count // 10
    assert len(split.train) == max(round(fraction * (count - len(validation))), 1)


def test_a_conversation_is_on_the_same_side_in_every_training() -> None:
    """Whatever the seed, and whatever other conversations there are: a network is trained further on some of them."""
    names = [f"{number}" for number in range(2000)]
    first, second = (split_conversations(some, 0.05, 1.0, seed) for seed, some in enumerate((names, names[:1200:-1])))
    judged = {names[number] for number in first.validation.tolist()}
    assert {names[:1200:-1][number] for number in second.validation.tolist()} == judged & set(names[1201:])


def test_one_conversation_cannot_be_split() -> None:
    with pytest.raises(InputError, match="harvest more prompts"):
        split_conversations(["a"], 0.05, 1.0, seed=0)


def test_what_is_one_conversation() -> None:
    """The same first turn, whatever file and number it has; before it was recorded, the same file and number."""
    a, b = {"file": "a", "question_id": 1, "question": "x"}, {"file": "b", "question_id": 7, "question": "x"}
    other = {"file": "a", "question_id": 1, "question": "y"}
    assert conversation_names([a, b, other, a]) == ["x", "x", "y", "x"]
    without = [{name: value for name, value in prompt.items() if name != "question"} for prompt in (a, b, other)]
    assert conversation_names(without) == ["a:1", "b:7", "a:1"]
    assert conversation_names([*without, a]) == ["a:1", "b:7", "a:1", "a:1"]


def turns_of(questions: int, file: str) -> list[dict]:
    return [
        {"question_id": number, "category": "c", "file": file, "question": f"question {number}", "turn": turn}
        for number in range(questions)
        for turn in range(2)
    ]


def trained_and_held_out(data: NodeData, folders: list[Path]) -> tuple[set[str], set[str]]:
    """First turns of the conversations in each part, told by the rows themselves."""
    records = read_records(folders)
    entries = [entry["question"] for folder in folders for entry in describe(folder).prompts]
    question = np.array(entries)[records.prompt.numpy()]
    learned = torch.cat([data.training.positives, data.training.negatives])
    rows = {tuple(row.tolist()) for row in data.validation.x}
    held_out = [tuple(row.tolist()) in rows for row in features(records, TrainSettings().features)]
    return set(question[learned.numpy()]), set(question[held_out])


@pytest.mark.parametrize("count", [1, 2])
def test_all_turns_of_a_question_stand_on_one_side(count: int, tmp_path: Path) -> None:
    """Every MT-bench question has two turns, and the second text contains the first; of two harvests alike."""
    folders = [tmp_path / str(number) for number in range(count)]
    for number, folder in enumerate(folders):
        make_harvest(folder, 24, 1, prompts_are=turns_of(12, f"{number}.jsonl"), first_seed=100 * number, **SMALL)
    for seed in range(5):
        data = NodeData(folders, TrainSettings(seed=seed))
        inside, outside = trained_and_held_out(data, folders)
        assert len(outside) == 6
        assert inside | outside == {f"question {number}" for number in range(12)}
        assert not inside & outside
        assert len(data.validation_prompts) == 6 * count


def test_trees_that_are_held_out_are_numbered(tmp_path: Path) -> None:
    make_harvest(tmp_path, prompts=30, trees_each=2, **SMALL)
    data = NodeData([tmp_path], TrainSettings(val_fraction=0.3))
    trees = 2 * len(data.validation_prompts)
    assert FEWEST < trees // 2 < 15
    assert data.validation.tree.unique().tolist() == list(range(trees))
    assert len(data.validation.x) == trees * 21


def test_a_conditional_network_learns_from_the_children_of_accepted_nodes(tmp_path: Path) -> None:
    make_harvest(tmp_path, prompts=20, trees_each=2, **SMALL)
    settings = replace(MODELS["c2t-conditional"], val_fraction=0.2)
    data, columns = NodeData([tmp_path], settings), read_columns(tmp_path, ("node", "parent", "accepted", "prompt"))
    parent = columns["parent"].astype(int)
    above = columns["accepted"][np.arange(len(parent)) - columns["node"] + parent]
    asked = np.flatnonzero((parent < 0) | above)
    learned, held_out = torch.cat([data.training.positives, data.training.negatives]).sort().values, data.validation
    assert set(learned.tolist()) < set(asked.tolist())
    assert len(learned) + len(held_out.x) == len(asked) < len(parent) / 2
    assert len(data.training.positives) + int(held_out.accepted.sum()) == columns["accepted"].sum()
    assert data.dropped == 0
    assert data.training.negatives_kept == 1


def test_rows_with_nan_are_dropped_and_counted(tmp_path: Path) -> None:
    entropy = np.ones(2 * 21)
    entropy[:10] = np.nan
    make_harvest(tmp_path, prompts=20, trees_each=2, replace={"entropy": entropy}, **SMALL)
    data = NodeData([tmp_path], TrainSettings())
    assert data.dropped == 200
    assert not torch.cat([x for x, _ in data.training]).isnan().any()
    assert not data.validation.x.isnan().any()


def test_harvests_with_another_m_do_not_mix(tmp_path: Path) -> None:
    make_harvest(tmp_path / "a", prompts=2, trees_each=1)
    make_harvest(tmp_path / "b", prompts=2, trees_each=1, provenance=PROVENANCE | {"M": 500, "pair": "other"})
    with pytest.raises(InputError, match="different M"):
        NodeData([tmp_path / "a", tmp_path / "b"], TrainSettings())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs = 0 must be at least 1"),
        ({"hidden": 0}, "hidden = 0"),
        ({"lr": 0.0}, "lr = 0.0 must be above 0"),
        ({"negatives": -1}, "negatives = -1"),
        ({"fraction": 1.5}, "fraction = 1.5"),
        ({"features": ("colour",)}, "unknown features colour"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainSettings(**wrong)
