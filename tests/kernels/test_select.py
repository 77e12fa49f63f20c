"""Levels by the twin against `grow`, and by the kernel in Triton's interpreter against the twin."""

import pytest
import torch

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.kernels.features import FEATURES, Column
from c2t.kernels.level_attention import ancestor_bits
from c2t.kernels.network import Network
from c2t.kernels.rows import TopK, rank, triton
from c2t.kernels.select import SelectLimits, _Candidates, _confidence, select, torch_select, triton_select
from c2t.kernels.static_tree import StaticTree
from c2t.policies.c2t import C2T
from c2t.policies.threshold import JointThreshold
from c2t.protocols import NextTokenDistributions
from c2t.tree import Tree
from tests.rounding import assert_within, growth, log_prob_bound
from tests.toys import root_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FEATURE_NAMES = ("depth", "joint_prob", "entropy")
COLUMNS = tuple(name for name, feature in FEATURES.items() if isinstance(feature, Column))  # of a tree


class ScriptedDraft:
    """Level l's logits for the f-th slot of a row's frontier are scripts[l][row, f]."""

    def __init__(self, scripts: list[torch.Tensor]):
        self.scripts = iter(scripts)

    def expand(self, tree: Tree, slots: torch.Tensor) -> NextTokenDistributions:
        return NextTokenDistributions(next(self.scripts)[:, : slots.shape[1]])


def scripts(rows: int, width: int, levels: int, vocabulary: int = 12) -> list[torch.Tensor]:
    """Of few values, so that candidates tie."""
    return [torch.randint(-2, 5, (rows, width, vocabulary)).float() for _ in range(levels)]


def grown(
    step, scripts: list[torch.Tensor], K: int, network: Network | None, limits: SelectLimits, M=None
) -> StaticTree:
    """A draft phase of `step`s."""
    rows, width = scripts[0].shape[:2]
    tree = StaticTree.rooted(torch.arange(rows, device=DEVICE), 1 + len(scripts) * width)
    frontier = range(1)
    for number, logits in enumerate(scripts):
        level = range(1 + number * width, 1 + (number + 1) * width)
        drafted = rank(logits[:, : len(frontier)].to(DEVICE), K, M)
        step(tree, frontier, level, drafted, network, limits)
        frontier = level
    return tree


def classifier(hidden: int = 6, names: tuple[str, ...] = FEATURE_NAMES, label: str = "accepted") -> TreeClassifier:
    """One unit trusts probable, certain and shallow nodes; the others add a little to it."""
    config = ClassifierConfig(features=names, hidden=hidden, M=None, label=label)
    model = TreeClassifier(config).requires_grad_(False)
    for layer in (model.hidden, model.output):
        torch.nn.init.normal_(layer.weight, std=0.1)
    trust = {"joint_prob": 4.0, "entropy": -0.5, "depth": -0.3, "rank": -0.2}
    model.hidden.weight[0] = torch.tensor([trust.get(name, 0.1) for name in names])
    model.hidden.bias[0], model.output.weight[0, 0], model.output.bias[0] = 3, 1, -2.5
    return model


def network_of(model: TreeClassifier) -> Network:
    layers = model.to(DEVICE)
    return Network(
        tuple(FEATURES[name] for name in model.config.features),
        layers.hidden.weight,
        layers.hidden.bias,
        layers.output.weight[0],
        layers.output.bias,
        conditional=model.config.label == "accepted_given_parent",
    )


def alive_nodes(tree: Tree | StaticTree, row: int) -> list[tuple]:
    """Of each alive slot but the root, its columns, the parent as a number among alive slots."""
    slots = tree.alive[row].nonzero()[:, 0].tolist()
    columns = [tree.token, tree.depth, tree.rank, tree.log_prob, tree.log_joint, tree.score]
    return [
        (slots.index(int(tree.parent[row, slot])), *(column[row, slot].item() for column in columns))
        for slot in slots[1:]
    ]


@pytest.mark.parametrize("max_nodes", [1024, 14])
@pytest.mark.parametrize("W", [4, None])
@pytest.mark.parametrize("kind", ["accepted", "accepted_given_parent", "joint"])
def test_levels_are_those_of_grow(kind: str, W: int | None, max_nodes: int) -> None:
    model, beta = kind != "joint" and classifier(label=kind), 0.15 if kind == "accepted_given_parent" else 0.4
    script = scripts(rows=3, width=4, levels=4)
    if kind != "joint":  # whose matrix product may tell equal rows apart in their last bit
        script = [logits + torch.rand_like(logits) for logits in script]
    shared = dict(K=3, W=W, levels=4, max_width=4, max_nodes=max_nodes)
    policy = JointThreshold(0.01, **shared) if kind == "joint" else C2T(model, beta=beta, **shared)
    expected = policy(ScriptedDraft(script), root_of(0, 1, 2))
    network = None if kind == "joint" else network_of(model)
    limits = SelectLimits(beta if network else 0.01, max_nodes, strict=W is None)
    tree = grown(torch_select, script, 3, network, limits)
    assert tree.capped.tolist() == expected.capped.tolist()
    assert tree.sizes.tolist() == expected.sizes.tolist()
    assert 3 < int(tree.sizes.max()) <= max_nodes
    step = 4 * log_prob_bound(torch.tensor([5.0] * 12)) + 4 * confidence_step(network)
    for row in range(3):
        found, wanted = alive_nodes(tree, row), alive_nodes(expected, row)
        assert [node[:4] for node in found] == [node[:4] for node in wanted]
        assert_within(torch.tensor(found, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64), step)


def test_bits_are_the_ancestors_and_dead_slots_see_themselves() -> None:
    tree = grown(torch_select, scripts(3, 9, 4), 3, None, SelectLimits(0.02))
    assert 0 < int((~tree.alive).sum()) < tree.alive.numel() - 9
    expected = ancestor_bits(torch.where(tree.alive, tree.parent, -1))
    assert tree.bits.shape == (3, 37, 2)
    assert tree.bits.equal(expected)


def test_a_second_round_is_as_the_first() -> None:
    script = scripts(2, 3, 1)
    tree = grown(select, script, 3, None, SelectLimits(0.05))
    first = [column.clone() for column in tree]
    tree.restart(tree.token[:, 0].clone())
    assert tree.sizes.tolist() == [1, 1]
    select(tree, range(1), range(1, 4), rank(script[0][:, :1].to(DEVICE), 3, None), None, SelectLimits(0.05))
    for column, before in zip(tree, first, strict=True):
        assert column.nan_to_num(nan=7.5).equal(before.nan_to_num(nan=7.5))


def confidence_step(network: Network | None) -> float:
    """How far two float32 confidences of these tests' classifiers may lie apart: no input is larger than 12."""
    if network is None:
        return 0.0
    hidden = 12 * network.hidden_weight.abs().sum(1) + network.hidden_bias.abs()
    logit = float(network.output_weight.abs() @ hidden + network.output_bias.abs())
    return 2 * growth(len(network.features) + len(hidden) + 8) * logit / 4


def agree(script: list[torch.Tensor], K: int, network: Network | None, limits: SelectLimits) -> StaticTree:
    """Both copy and add the same numbers, so all columns are equal but the classifier's scores, which are sums in
    another order; those of a path are multiplied where they are conditional."""
    found, expected = (grown(step, script, K, network, limits) for step in (triton_select, torch_select))
    for name, column in found._asdict().items():
        if name == "score" and network is not None:
            assert_within(column, expected.score, len(script) * confidence_step(network), name)
        else:
            assert column.nan_to_num(nan=7.5).equal(getattr(expected, name).nan_to_num(nan=7.5)), name
    return found


@pytest.mark.skipif(triton is None, reason="triton is not installed")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy says when the interpreter meets -inf or NaN
class TestKernel:
    @pytest.mark.parametrize(
        "limits", [SelectLimits(0.0), SelectLimits(0.02, strict=True), SelectLimits(0.02, max_nodes=5)]
    )
    def test_joint_probability(self, limits: SelectLimits) -> None:
        tree = agree(scripts(2, 4, 3), 3, None, limits)
        assert int(tree.sizes.max()) > 3

    @pytest.mark.parametrize("limits", [SelectLimits(0.4), SelectLimits(0.4, max_nodes=6, strict=True)])
    def test_classifier(self, limits: SelectLimits) -> None:
        tree = agree(scripts(2, 4, 3), 3, network_of(classifier()), limits)
        assert int(tree.sizes.max()) > 3

    def test_conditional_classifier(self) -> None:
        script, networks = scripts(2, 4, 3), map(network_of, (classifier(label="accepted_given_parent"), classifier()))
        sizes = [int(agree(script, 3, network, SelectLimits(0.15)).sizes.max()) for network in networks]
        assert 3 < sizes[0] < sizes[1]

    @pytest.mark.parametrize("names", [("entropy", "depth"), COLUMNS])
    def test_features(self, names: tuple[str, ...]) -> None:
        """Fewer in another order, and every column of a tree."""
        tree = agree(scripts(2, 4, 3), 3, network_of(classifier(5, names)), SelectLimits(0.4))
        assert 3 < int(tree.sizes.max()) < 13

    def test_trees_end_one_by_one(self) -> None:
        """The first row's children are hopeless, the second one's go on."""
        script = scripts(2, 4, 3)
        script[0][0] = 0
        tree = agree(script, 3, None, SelectLimits(0.1))
        assert int(tree.sizes[0]) == 1
        assert int(tree.sizes[1]) > 1
        assert int(tree.alive[0].sum()) == 1

    def test_tokens_without_probability_and_rows_with_nan(self) -> None:
        script = scripts(3, 4, 2)
        script[0][1, 0, 1:], script[1][2, 0, 4] = float("-inf"), float("nan")
        agree(script, 3, None, SelectLimits(0.0))
        agree(script, 3, network_of(classifier(3)), SelectLimits(0.2))

    def test_more_slots_than_a_word_of_bits(self) -> None:
        tree = agree(scripts(1, 20, 2), 12, None, SelectLimits(0.0))
        assert int(tree.bits[0, 32:, 1].ne(0).sum()) == 9

    def test_no_rows(self) -> None:
        tree = StaticTree.rooted(torch.zeros(0, dtype=torch.long, device=DEVICE), 5)
        empty = torch.zeros(0, 1, 3, device=DEVICE)
        drafted = TopK(empty.long(), empty, empty[..., 0], empty[..., 0])
        triton_select(tree, range(1), range(1, 4), drafted, None, SelectLimits(0))

    @pytest.mark.gpu
    @pytest.mark.parametrize(("width", "K"), [(15, 15), (64, 32)])
    def test_full_size(self, width: int, K: int) -> None:
        agree([torch.randint(-2000, 2000, (8, width, 100)) / 500 for _ in range(4)], K, None, SelectLimits(0.01))

    @pytest.mark.gpu
    @pytest.mark.parametrize(("width", "K"), [(15, 15), (64, 32)])
    def test_full_size_of_a_classifier(self, width: int, K: int) -> None:
        """Of so many confidences some differ in their last bits only, and those may change places. So each level is
        chosen in equal trees: every place has the twin's confidence, and every node its own."""
        network, limits = network_of(classifier(64)), SelectLimits(0.01)
        step = confidence_step(network)
        script = [torch.randint(-2000, 2000, (8, width, 100)) / 500 for _ in range(4)]
        for levels in range(1, 5):
            found, expected = (
                grown(last_by(last, levels), script[:levels], K, network, limits)
                for last in (triton_select, torch_select)
            )
            new = slice(1 + width * (levels - 1), 1 + width * levels)
            alive = found.alive[:, new]
            assert alive.equal(expected.alive[:, new])
            assert int(alive.sum()) > 8
            assert_within(found.score[:, new], expected.score[:, new], step, "score")
            own = _confidence(_Candidates(*(column[:, new] for column in found[:8])), found, network)
            assert_within(found.score[:, new][alive], own[alive], step, "own score")


def last_by(step, levels: int):
    """The twin grows all levels but the last one."""
    order = iter([torch_select] * (levels - 1) + [step])
    return lambda *given: next(order)(*given)
