"""Harvests of a small pair in float64: what every row must satisfy, live and replayed, whole and interrupted."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from c2t.classifier import features
from c2t.costs.statistics import Trace
from c2t.errors import InputError
from c2t.harvest import harvest as harvesting
from c2t.harvest.harvest import HarvestSettings, harvest, run
from c2t.kernels.features import FEATURES, WIDE
from c2t.models.loading.load import Pair
from c2t.records.reader import read_columns, read_records, read_shards
from c2t.records.schema import COLUMNS, Harvest
from c2t.records.writer import ShardWriter
from c2t.replay.prompts import Prompt
from c2t.tree import Tree
from tests.harvests import assert_same_rows
from tests.rounding import assert_within, growth
from tests.small_pair import TURNS
from tests.toys import toy_target

PROMPTS = [Prompt(number, "known", [turn], "code.jsonl") for number, turn in enumerate(TURNS[:5])]
PROMPTS += [Prompt(9, "heldout", ["The sum of", "a number is", "def add"], "chat.jsonl")]
FULL = HarvestSettings(max_new_tokens=10, batch=4)


@pytest.fixture(scope="module")
def full(small_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Harvest:
    """The paper's trees: K = 10, 11 levels, M = 1000."""
    return harvest(small_pair, PROMPTS, tmp_path_factory.mktemp("harvest"), FULL)


def by_tree(done: Harvest) -> Sequence[dict[str, np.ndarray]]:
    columns = read_columns(done.folder, list(COLUMNS))
    starts = np.flatnonzero(np.diff(columns["tree"], prepend=-1))
    return [
        {name: part for name, part in zip(columns, parts, strict=True)}
        for parts in zip(*(np.split(column, starts[1:]) for column in columns.values()), strict=True)
    ]


def test_every_tree_is_the_full_one(full: Harvest) -> None:
    trees = by_tree(full)
    assert len(trees) == full.trees > 10
    assert [entry["turn"] for entry in full.prompts] == [0, 0, 0, 0, 0, 0, 1, 2], "every turn is a text"
    assert {int(tree["prompt"][0]) for tree in trees} == set(range(8))
    for tree in trees:
        assert tree["node"].tolist() == list(range(10 + 10 * 10 * 10))
        assert (tree["parent"] < tree["node"]).all()
        assert np.bincount(tree["depth"]).tolist() == [10] + [100] * 10
        assert len(np.unique(tree["position"])) == len(np.unique(tree["prompt"])) == 1


def test_rows_are_what_the_words_say(full: Harvest) -> None:
    for tree in by_tree(full):
        parent, joint = tree["parent"], tree["joint_prob"].astype(float)
        above = np.where(parent >= 0, joint[parent], 1.0)
        assert (joint <= above * (1 + growth(4))).all()  # two exponentials, rounded
        assert (tree["depth"] == np.where(parent >= 0, tree["depth"][parent] + 1, 0)).all()
        for siblings in (parent == p for p in np.unique(parent)):
            assert len(np.unique(tree["entropy"][siblings])) == 1
            assert tree["rank"][siblings].tolist() == list(range(10))
            assert (np.diff(joint[siblings]) <= growth(4) * joint[siblings][1:]).all()
            own = joint[siblings] / above[siblings]  # joint_prob is the product along the path
            assert own.sum() <= 1 + growth(8)
            assert tree["entropy"][siblings][0] <= np.log(320) * (1 + growth(2))
        path = np.flatnonzero(tree["accepted"])
        assert parent[path].tolist() == [-1, *path[:-1]][: len(path)]


def stored_bound(names: list[str], tree: Tree, row: int) -> torch.Tensor:
    """How far features of a tree's nodes may lie from those of float32 joint probabilities: a probability is rounded a
    few times, so its logarithm errs by as much, and log-odds by 1 / (1 - p) times that."""
    nodes = tree.take(torch.arange(1, tree.size).expand(len(tree.token), -1))
    live = features(nodes, names)[row].double().abs()
    bound = growth(6) * (1 + live)
    sure = -torch.expm1(nodes.max_log_prob[row].double())
    bound[:, names.index("max_prob_logit")] += growth(8) / sure.clamp(min=1e-6)  # beyond which the feature is cut
    return bound


def test_features_of_records_are_those_of_live_trees(full: Harvest, small_pair: Pair) -> None:
    """Also of columns that are derived from stored ones."""
    records = read_records([full.folder], ["log_prob", "max_log_prob", "rank"])
    ids = [small_pair.tokenizer(prompt.turns[0]).input_ids for prompt in PROMPTS[:4]]
    names = [name for name in FEATURES if name not in WIDE]
    stored, rounds = features(records, names), [0] * 4
    for step in list(run(small_pair, ids, [0, 1, 2, 3], FULL))[1:]:
        for row, text in enumerate(step.rows.tolist()):
            live = features(step.tree.take(torch.arange(1, 1011).expand(len(step.rows), -1)), names)[row]
            tree = records.tree[records.prompt == text].unique()[rounds[text]]
            assert_within(stored[records.tree == tree], live.double(), stored_bound(names, step.tree, row))
            rounds[text] += 1


def test_rounds_cover_the_text(full: Harvest, small_pair: Pair) -> None:
    """new tokens = 1 + sum over rounds of (accepted + 1) - cut, and every root stands where the round before ended."""
    ids = [small_pair.tokenizer(prompt.turns[0]).input_ids for prompt in PROMPTS[:3]]
    trace = Trace(3)
    for step in run(small_pair, ids, [0, 1, 2], FULL):
        trace.add(step)
    lengths = [len(tokens) for tokens in trace.tokens]
    trees = by_tree(full)
    for prompt in range(3):
        rounds = [tree for tree in trees if tree["prompt"][0] == prompt]
        accepted = [int(tree["accepted"].sum()) for tree in rounds]
        assert accepted == trace.statistics[prompt].accepted
        assert lengths[prompt] == 1 + sum(a + 1 for a in accepted)
        positions = [int(tree["position"][0]) for tree in rounds]
        assert positions == [len(ids[prompt]) + sum(a + 1 for a in accepted[:i]) for i in range(len(rounds))]


def test_rows_are_small(full: Harvest) -> None:
    assert sum(path.stat().st_size for path in full.folder.iterdir()) < 8 * full.rows


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_live_and_replayed_rows_are_the_same(temperature: float, small_pair: Pair, tmp_path: Path) -> None:
    settings = {"K": 4, "levels": 4, "max_new_tokens": 14, "temperature": temperature, "seed": 5}
    live, replayed = (
        harvest(small_pair, PROMPTS, tmp_path / str(live), HarvestSettings(**settings, live=live))
        for live in (True, False)
    )
    assert live.positives > 0
    assert_same_rows(live, replayed)


def test_an_interrupted_harvest_ends_with_the_same_rows(
    full: Harvest, small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the second batch, and with a shard that ends inside a batch."""
    whole, batches = harvesting._rows, iter(range(1, 9))

    def interrupted(*arguments):
        second, rows = next(batches) == 2, list(whole(*arguments))
        yield from rows[:3] if second else rows
        if second:
            raise KeyboardInterrupt

    monkeypatch.setattr(harvesting, "_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        harvest(small_pair, PROMPTS, tmp_path, FULL)
    assert not (tmp_path / "manifest.json").exists()
    done = harvest(small_pair, PROMPTS, tmp_path, FULL, resume=True)
    assert (done.rows, done.trees, done.positives) == (full.rows, full.trees, full.positives)
    assert_same_rows(full, done)


def test_two_harvests_into_one_folder_are_refused(small_pair: Pair, tmp_path: Path) -> None:
    """Also with other settings and --resume, which once lost the rows of one of them."""
    settings = HarvestSettings(K=2, levels=2, max_new_tokens=4)

    def meanwhile(*_: object) -> None:
        for how in ({"resume": True}, {"overwrite": True}, {}):
            with pytest.raises(InputError, match=r"rows is being written by process \d+ on "):
                harvest(small_pair, PROMPTS, tmp_path / "rows", replace(settings, seed=1), **how)

    done = harvest(small_pair, PROMPTS, tmp_path / "rows", settings, progress=meanwhile)
    assert done.provenance["seed"] == 0


def test_batches_are_on_disk_after_a_while(
    full: Harvest, small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed in the second batch, without a chance to write, has kept the first one."""
    whole, batches, written = harvesting._rows, iter(range(1, 9)), []

    def killed(*arguments):
        if next(batches) == 2:
            written.extend(info["prompts"] for info in read_shards(tmp_path).values())
            raise KeyboardInterrupt
        yield from whole(*arguments)

    monkeypatch.setattr(harvesting, "_rows", killed)
    monkeypatch.setattr(harvesting, "ShardWriter", partial(ShardWriter, seconds_per_shard=0.0))
    with pytest.raises(KeyboardInterrupt):
        harvest(small_pair, PROMPTS, tmp_path, FULL)
    assert written == [[0, 4]]
    assert_same_rows(full, harvest(small_pair, PROMPTS, tmp_path, FULL, resume=True))


def test_all_positions_hold_the_visited_ones(small_pair: Pair, tmp_path: Path) -> None:
    """The same texts (the second turn shows the first answer), a tree at every position, and among them the visited
    ones, found by walking."""
    settings = {"K": 3, "levels": 3, "max_new_tokens": 9, "temperature": 0.8, "seed": 5}
    visited, every = (
        harvest(small_pair, PROMPTS[3:], tmp_path / name, HarvestSettings(**settings, positions=name))
        for name in ("visited", "all")
    )
    assert (visited.provenance["positions"], every.provenance["positions"]) == ("visited", "all")
    assert every.trees > visited.trees
    walked, following, last = [], 0, -1
    for tree in by_tree(every):
        prompt, position = int(tree["prompt"][0]), int(tree["position"][0])
        if prompt != last:
            last, following = prompt, position
        if position == following:
            walked.append(tree)
            following += int(tree["accepted"].sum()) + 1
    for one, other in zip(walked, by_tree(visited), strict=True):
        for name in set(COLUMNS) - {"tree"}:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_progress_is_told_as_rounds_go(small_pair: Pair, tmp_path: Path) -> None:
    """Rows grow round by round, not batch by batch."""
    told = []
    settings = HarvestSettings(K=3, levels=3, M=100, max_new_tokens=8, batch=len(PROMPTS))
    done = harvest(small_pair, PROMPTS, tmp_path, settings, progress=lambda *counts: told.append(counts))
    assert len(told) > 5
    texts, of, said = zip(*told, strict=True)
    rows = [int(words.removesuffix(" rows").replace(",", "")) for words in said]
    assert rows == sorted(rows)
    assert rows[0] == settings.nodes * len(PROMPTS)
    assert rows[-2:] == [done.rows] * 2
    assert texts[-2:] == (0, len(done.prompts))
    assert set(of) == {len(done.prompts)}


def test_trees_wider_than_the_vocabulary_leave_the_folder_alone(small_pair: Pair, tmp_path: Path) -> None:
    narrow = replace(small_pair, target=toy_target())
    for policy in ("eagle2", "mcsd+"):
        with pytest.raises(InputError, match=r"[KW] = 60 is more than the pair's vocabulary of 48"):
            harvest(narrow, PROMPTS, tmp_path / "new", HarvestSettings(K=60, levels=2, policy=policy), overwrite=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"columns": ("top",)}, "no further column is called 'top'; known: top_probs, hidden, target_prob"),
        ({"policy": "c2t"}, "policy = 'c2t' cannot be harvested; known: eagle2, mcsd"),
        ({"policy": "mcsd+", "levels": 1}, "use at least 2"),
        ({"positions": "some"}, "positions = "),
        ({"positions": "all", "live": True}, "positions = "),
        ({"positions": "all", "policy": "mcsd+"}, "positions = "),
    ],
)
def test_settings_are_checked(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        HarvestSettings(**wrong)
