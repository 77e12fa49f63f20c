"""Further columns of a harvest: they are what draft and target say where a node was drawn, and networks learn from
them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from c2t.classifier import TreeClassifier
from c2t.errors import InputError
from c2t.harvest.extra_columns import types
from c2t.harvest.harvest import HarvestSettings, harvest
from c2t.models.loading.load import Pair
from c2t.policies import C2T, Plain
from c2t.policies.spec import describe, parse
from c2t.records.reader import read_columns, read_records
from c2t.records.schema import COLUMNS, Harvest
from c2t.replay.prompts import Prompt
from c2t.sampling import Sampling
from c2t.training.fit import train
from c2t.training.settings import LABELS, MODELS
from c2t.verification.target_verifier import generate
from tests.rounding import NETWORK, assert_within, figure, growth
from tests.small_pair import TURNS

PROMPTS = [Prompt(number, "known", [turn], "code.jsonl") for number, turn in enumerate(TURNS[:4])]
ALL = ("top_probs", "hidden", "target_prob")
FORKS = HarvestSettings(K=3, levels=4, M=100, max_new_tokens=10, temperature=0.8, policy="mcsd+", columns=ALL)


@pytest.fixture(scope="module")
def forks(small_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Harvest:
    return harvest(small_pair, PROMPTS, tmp_path_factory.mktemp("forks"), FORKS)


@pytest.fixture(scope="module")
def columns(forks: Harvest) -> dict[str, np.ndarray]:
    return read_columns(forks.folder, [*COLUMNS, *ALL])


def test_a_fork_has_the_targets_candidates_and_chains_of_the_draft(columns: dict[str, np.ndarray]) -> None:
    whole = columns["node"].reshape(-1, 12)
    assert (whole == np.arange(12)).all()
    assert (columns["parent"].reshape(-1, 12) == [-1, -1, -1, *range(9)]).all()
    assert (columns["depth"].reshape(-1, 12) == np.arange(12) // 3).all()
    accepted = columns["accepted"].reshape(-1, 4, 3)
    assert accepted[:, 0].all()
    assert (accepted[:, 1:] <= accepted[:, :-1]).all()
    assert (accepted[:, 1].sum(1) > 1).any()  # by the target on several forks, of which one was kept


def test_columns_are_the_drafts_and_nan_where_it_has_drawn_nothing(
    columns: dict[str, np.ndarray], small_pair: Pair
) -> None:
    first = columns["depth"] == 0
    assert all(np.isnan(columns[name][first]).all() for name in ("top_probs", "hidden", "entropy"))
    top, hidden = columns["top_probs"][~first], torch.from_numpy(columns["hidden"][~first]).double()
    expected = small_pair.target.lm_head(hidden).softmax(-1).topk(10).values
    # Stored states are rounded to float32, so a logit errs by a part of its terms' sizes, and a probability relatively.
    terms = float((hidden.abs() @ small_pair.target.lm_head.weight.abs().T).max())
    assert_within(top, expected, (growth(2) + 2 * growth(1) * terms) * expected)
    above = columns["joint_prob"][np.arange(len(first)) - columns["node"] + np.maximum(columns["parent"], 0)][~first]
    assert_within(columns["joint_prob"][~first] / above, top[:, 0], growth(4) * torch.from_numpy(top[:, 0]))


def test_target_prob_is_the_targets_probability_of_the_path(columns: dict[str, np.ndarray], small_pair: Pair) -> None:
    """Of the first round of the first prompt, path by path through the stock model."""
    ids = small_pair.tokenizer(PROMPTS[0].turns[0]).input_ids
    sampling = Sampling(0.8)
    root = next(iter(generate(small_pair.target, None, Plain(), [ids], max_new_tokens=1, sampling=sampling)))
    text = [*ids, int(root.tokens[0, 0])]
    for fork in range(3):
        path = columns["token"][[fork, fork + 3, fork + 6, fork + 9]].tolist()
        logits = small_pair.target.model(input_ids=torch.tensor([[*text, *path]])).logits[0, len(text) - 1 : -1]
        own = (logits / 0.8).softmax(-1).gather(1, torch.tensor(path)[:, None])[:, 0]
        found = columns["target_prob"][[fork, fork + 3, fork + 6, fork + 9]]
        assert_within(found, own.cumprod(0), (growth(1) + NETWORK) * own.cumprod(0).detach())


def test_the_label_of_the_first_decision_model_is_the_ratio_of_target_and_draft(
    forks: Harvest, columns: dict[str, np.ndarray]
) -> None:
    ratio = LABELS["ratio"].of(read_records([forks.folder], ["target", "log_prob"])).numpy()
    for row in range(3, 12):
        p, q = (columns[name][row] / columns[name][row - 3] for name in ("target_prob", "joint_prob"))
        assert ratio[row] == figure(min(1, p / q), 8, torch.float32)


def test_replayed_columns_of_full_trees_are_the_live_ones(small_pair: Pair, tmp_path: Path) -> None:
    settings = HarvestSettings(K=3, levels=3, M=100, max_new_tokens=8, columns=("top_probs", "hidden"))
    live, replayed = (
        harvest(small_pair, PROMPTS[:2], tmp_path / str(live), replace(settings, live=live)) for live in (True, False)
    )
    for name in ("top_probs", "hidden"):
        found = [read_columns(done.folder, [name])[name] for done in (live, replayed)]
        assert_within(*found, NETWORK + growth(2) * torch.from_numpy(found[1]).abs())
    top, rank, entropy = read_columns(live.folder, ["top_probs", "rank", "entropy"]).values()
    joint, node, parent = read_columns(live.folder, ["joint_prob", "node", "parent"]).values()
    above = np.where(parent < 0, 1, joint[np.arange(len(node)) - node + parent.astype(int)])
    own = top[np.arange(len(top)), rank]
    assert_within(joint / above, own, growth(4) * torch.from_numpy(own))
    assert not np.isnan(entropy).any()


@pytest.mark.parametrize("model", ["mcsd-hidden", "mcsd-topk"])
def test_a_decision_model_is_trained_saved_loaded_and_used(
    model: str, forks: Harvest, small_pair: Pair, tmp_path: Path
) -> None:
    result = train([forks.folder], tmp_path / "it", replace(MODELS[model], epochs=1, min_steps=20, hidden=8))
    loaded = TreeClassifier.from_pretrained(tmp_path / "it")
    assert (loaded.config.layers, loaded.config.label) == ((3, "ratio") if model == "mcsd-hidden" else (2, "accepted"))
    assert loaded.config.widths == ({"hidden": 32} if model == "mcsd-hidden" else {"top_probs": 10})
    assert result.dropped == forks.trees * 3  # the target's candidates are no drafted nodes
    assert "MCSDPlus(decision=" in (tmp_path / "it" / "README.md").read_text()
    ids = [small_pair.tokenizer(prompt.turns[0]).input_ids for prompt in PROMPTS]

    def sizes(threshold: float) -> list[int]:
        spec = f"mcsd+:W=3,D=3,threshold={threshold},decision={tmp_path / 'it'}"
        policy = parse(spec, TreeClassifier.from_pretrained)
        assert f"decision={tmp_path / 'it'}" in describe(policy)
        steps = generate(small_pair.target, small_pair.draft, policy, ids, max_new_tokens=8, sampling=Sampling())
        return [size for step in steps if step.tree for size in step.tree.sizes.tolist()]

    assert set(sizes(1e-9)) == {1 + 3 * 4}
    assert set(sizes(1.0)) == {1 + 3 * 2}
    with pytest.raises(InputError, match="decides for mcsd"):
        C2T(loaded)


def test_a_draft_without_states_has_no_column_of_them() -> None:
    assert types(["top_probs"], 0).keys() == {"top_probs"}
    with pytest.raises(InputError, match="no hidden states; leave the column hidden out"):
        types(["top_probs", "hidden"], 0)


def test_missing_columns_are_named(small_pair: Pair, tmp_path: Path) -> None:
    harvest(small_pair, PROMPTS[:2], tmp_path, replace(FORKS, columns=()))
    with pytest.raises(InputError, match="has no column hidden"):
        train([tmp_path], tmp_path / "it", MODELS["mcsd-hidden"])
