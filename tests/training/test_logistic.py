"""Logistic regression as a classifier: it is scikit-learn's model to the letter, and C2T uses it like a network."""

from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.errors import InputError
from c2t.policies import C2T
from c2t.training.data import NodeData, TrainSettings
from c2t.training.logistic import linear, train_logistic
from tests.harvests import make_harvest
from tests.rounding import assert_within, confidence_bound
from tests.toys import TableDraft, random_table, root_of

SUBSETS = [("joint_prob", "entropy", "depth"), ("joint_prob", "entropy"), ("joint_prob", "depth"), ("entropy", "depth")]


@pytest.fixture(scope="module")
def harvest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_harvest(tmp_path_factory.mktemp("harvest") / "toy", prompts=8, trees_each=2)


def test_the_two_unit_network_is_the_linear_model() -> None:
    weight, x = torch.tensor([2.0, -0.5, 0.1]), torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    model = linear(weight, -0.3, ClassifierConfig())
    assert_within(model.logits(x), x.double() @ weight.double() - 0.3, 4 * confidence_bound(model, x))


@pytest.mark.parametrize("names", SUBSETS, ids=lambda names: "+".join(names))
def test_it_is_scikit_learns_model_of_the_same_rows_and_drafts(names, harvest: Path, tmp_path: Path) -> None:
    settings = TrainSettings(names)
    trained = train_logistic([harvest], tmp_path / "classifier", settings)
    nodes = NodeData([harvest], settings)
    rows = nodes.training.draw().long()
    x, accepted = nodes.training.x[rows].numpy(), nodes.training.accepted[rows].numpy()
    stock = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, accepted)
    wide = stock[0].mean_, stock[0].scale_, stock[1].coef_[0]
    exact = ((x.astype(float) - wide[0]) / wide[1]) @ wide[2] + stock[1].intercept_[0]
    rows = torch.from_numpy(x)
    assert_within(trained.logits(rows), torch.from_numpy(exact), 4 * confidence_bound(trained, rows))
    assert trained.config.metrics["average_precision"] > 2 * float(nodes.training.accepted.float().mean())

    loaded = TreeClassifier.from_pretrained(tmp_path / "classifier")
    assert loaded.config.features == names
    assert loaded.config.hidden == 2
    table, root = random_table(32), root_of(1, 2)
    tree, again = (C2T(model, beta=0.4, K=4, W=4, levels=3)(TableDraft(table), root) for model in (trained, loaded))
    assert tree.size > 1
    assert tree.token.equal(again.token)


def test_a_folder_that_is_not_empty_is_not_replaced_unasked(harvest: Path, tmp_path: Path) -> None:
    train_logistic([harvest], tmp_path / "classifier")
    with pytest.raises(InputError, match="replace it with --overwrite"):
        train_logistic([harvest], tmp_path / "classifier")
    train_logistic([harvest], tmp_path / "classifier", overwrite=True)
