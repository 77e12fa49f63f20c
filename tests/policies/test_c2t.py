"""C2T's tree against Algorithm 1 in plain Python, one tree at a time."""

import math
import warnings
from collections.abc import Callable

import pytest
import torch

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.errors import InputError
from c2t.policies import C2T
from tests.rounding import SCORE, within
from tests.toys import TableDraft, path_of, random_table, root_of, toy_classifier

VOCABULARY = 20
ROOT = root_of(11, 12, 13)


def confidence(classifier: TreeClassifier, joint_prob: float, entropy: float, depth: int) -> float:
    """FFN 3 -> h -> 1 with ReLU and sigmoid."""
    x = (joint_prob, entropy, float(depth))
    weight, bias = classifier.hidden.weight.tolist(), classifier.hidden.bias.tolist()
    hidden = [
        max(0.0, b + sum(w * v for w, v in zip(row, x, strict=True))) for row, b in zip(weight, bias, strict=True)
    ]
    logit = classifier.output.bias.item() + sum(
        w * h for w, h in zip(classifier.output.weight[0].tolist(), hidden, strict=True)
    )
    return 1 / (1 + math.exp(-logit))


def algorithm_1(
    probabilities: Callable, classifier, beta, K, W, levels, M, conditional
) -> list[list[tuple[tuple[int, ...], float]]]:
    """Levels of (path, confidence), most confident first; conditional: confidences are multiplied along the path."""
    tree, frontier = [], [((), 1.0, 1.0)]
    for depth in range(levels):
        candidates = []
        for path, joint, above in frontier:
            p = probabilities(path)
            ranked = sorted(range(len(p)), key=lambda token: -p[token])
            entropy = -sum(p[token] * math.log(p[token]) for token in ranked[:M])
            for token in ranked[:K]:
                score = confidence(classifier, joint * p[token], entropy, depth) * (above if conditional else 1)
                candidates.append((score, (*path, token), joint * p[token]))
        survivors = sorted((c for c in candidates if c[0] >= beta), key=lambda c: -c[0])[:W]
        if not survivors:
            break
        tree.append([(path, score) for score, path, _ in survivors])
        frontier = [(path, joint, score) for score, path, joint in survivors]
    return tree


@pytest.mark.parametrize("label", ["accepted", "accepted_given_parent"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("beta", "K", "W", "levels", "M"),
    [(0.5, 5, 4, 4, 1000), (0.35, 5, None, 3, 1000), (0.3, 3, 3, 6, 7), (0.6, 1, 1, 6, None), (0.32, 6, 2, 2, 3)],
)
def test_tree_is_that_of_algorithm_1(
    seed: int, beta: float, K: int, W: int | None, levels: int, M: int | None, label: str
) -> None:
    logits, classifier = random_table(VOCABULARY, seed), toy_classifier(seed, M, label)
    tree = C2T(classifier, beta, K, W, levels, max_width=1000)(TableDraft(logits), ROOT)
    sizes = []
    for row in range(3):
        expected = algorithm_1(
            lambda path, row=row: logits(row, path).softmax(-1).tolist(),
            classifier,
            beta,
            K,
            W,
            levels,
            M,
            conditional=label == "accepted_given_parent",
        )
        nodes = [slot for slot in range(1, tree.size) if tree.alive[row, slot]]
        flat = [node for level in expected for node in level]
        assert [tuple(path_of(tree, row, slot)) for slot in nodes] == [path for path, _ in flat]
        assert [tree.score[row, slot].item() for slot in nodes] == within([s for _, s in flat], SCORE)
        assert [tree.depth[row, slot].item() for slot in nodes] == [len(path) - 1 for path, _ in flat]
        sizes.append(1 + len(flat))
    assert tree.sizes.tolist() == sizes
    assert tree.size == max(sizes) > 1
    assert not tree.capped.any()


def test_rows_of_a_batch_have_trees_of_their_own_size() -> None:
    sizes = [C2T(toy_classifier(), 0.2, 5, 5, 5)(TableDraft(random_table(VOCABULARY, s)), ROOT).sizes for s in range(4)]
    assert len(set(torch.cat(sizes).tolist())) > 3


def confident(bias: float) -> TreeClassifier:
    """The same confidence for every node."""
    model = toy_classifier()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.output.bias.fill_(bias)
    return model


def test_drafting_stops_where_nobody_survives() -> None:
    draft = TableDraft(random_table(VOCABULARY))
    tree = C2T(confident(-1.0), beta=0.5)(draft, ROOT)
    assert tree.sizes.tolist() == [1, 1, 1]
    assert tree.size == 1
    assert len(draft.expanded) == 1


def test_threshold_is_inclusive() -> None:
    tree = C2T(confident(0.0), beta=0.5, K=2, W=2, levels=1)(TableDraft(random_table(VOCABULARY)), ROOT)
    assert tree.sizes.tolist() == [3, 3, 3]


def test_equal_confidence_prefers_the_more_probable_node() -> None:
    logits = random_table(VOCABULARY)
    tree = C2T(confident(3.0), K=6, W=3, levels=1)(TableDraft(logits), ROOT)
    for row in range(3):
        assert tree.token[row, 1:].tolist() == logits(row, ()).topk(3).indices.tolist()


def test_K_and_W_of_one_make_a_chain() -> None:
    tree = C2T(confident(3.0), K=1, W=1, levels=7)(TableDraft(random_table(VOCABULARY)), ROOT)
    assert tree.parent.tolist() == [list(range(-1, 7))] * 3


def test_naive_variant_is_cut_at_max_width_and_says_so() -> None:
    policy = C2T(confident(3.0), K=4, W=None, levels=3, max_width=10)
    tree = policy(TableDraft(random_table(VOCABULARY)), ROOT)
    assert tree.sizes.tolist() == [1 + 4 + 10 + 10] * 3
    assert tree.capped.tolist() == [(16 - 10) + (40 - 10)] * 3


@pytest.mark.parametrize("W", [5, None])
def test_max_nodes_ends_the_tree_and_says_so(W: int | None) -> None:
    policy = C2T(confident(3.0), K=5, W=W, levels=4, max_nodes=14, max_width=5)
    tree = policy(TableDraft(random_table(VOCABULARY)), ROOT)
    assert tree.sizes.tolist() == [14] * 3
    # Of levels of 5, 25 and 25 candidates 5, 5 and 3 are kept, and no fourth is drafted; what W drops is its own rule.
    assert tree.capped.tolist() == [(5 - 3) if W else (25 - 5) + (25 - 3)] * 3


def test_size_limits_hold_for_each_row_as_if_alone() -> None:
    logits = random_table(VOCABULARY, seed=2)
    policy = C2T(toy_classifier(), beta=0.2, K=4, W=6, levels=5, max_nodes=8)
    together = policy(TableDraft(logits), ROOT)
    assert together.capped.any()
    assert together.sizes.min() < 8
    for row in range(3):
        alone = policy(TableDraft(lambda _, path, row=row: logits(row, path)), root_of(int(ROOT.token[row])))
        paths = [tuple(path_of(alone, 0, slot)) for slot in range(alone.size)]
        slots = together.alive[row].nonzero()[:, 0].tolist()
        assert [tuple(path_of(together, row, slot)) for slot in slots] == paths
        assert together.capped[row] == alone.capped[0]


def test_entropy_uses_the_trained_M_and_warns_about_another() -> None:
    classifier = toy_classifier(M=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for M in ("trained", 3):
            C2T(classifier, M=M)
    with pytest.warns(UserWarning, match="M = None"):
        policy = C2T(classifier, beta=0.01, M=None, K=2, W=2, levels=1)
    draft = TableDraft(random_table(VOCABULARY))
    whole, trained = policy(draft, ROOT), C2T(classifier, beta=0.01, K=2, W=2, levels=1)(draft, ROOT)
    assert (whole.entropy[:, 1] > trained.entropy[:, 1]).all()


def test_beta_is_the_one_that_the_classifier_recommends() -> None:
    assert C2T(TreeClassifier(ClassifierConfig(beta=0.2))).beta == 0.2


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_beta_outside_of_0_and_1_is_refused(beta: float) -> None:
    with pytest.raises(InputError, match="beta"):
        C2T(toy_classifier(), beta=beta)


@pytest.mark.parametrize("name", ["K", "W", "levels", "max_width", "max_nodes"])
def test_settings_below_one_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} = 0"):
        C2T(toy_classifier(), **{name: 0})
