"""Walks and draws in C against the same ones in torch."""

import math
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from c2t.caches.ragged import Ragged, SlotLogits
from c2t.errors import InputError
from c2t.kernels import walk
from c2t.kernels.native import kernels
from c2t.sampling import Sampling, gumbel_max
from c2t.tree import Tree
from c2t.verification.mixed_sampler import MixedSampler
from c2t.verification.sampler import TargetSampler, accept_greedily
from c2t.verify import Accepted
from tests.test_tree import trees

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where the kernel runs in Triton's interpreter


def assert_same_path(found: Accepted, expected: Accepted) -> None:
    assert all(map(torch.equal, found[:3], expected[:3]))


@pytest.mark.skipif(walk.triton is None, reason="triton is not installed")
@settings(max_examples=40, deadline=None)
@given(trees(), st.sampled_from([0.0, 0.5, 2.0]), st.sampled_from([0, 2]), st.booleans(), st.integers(0, 2**31))
def test_draws_after_every_slot_are_those_along_the_path(
    tree: Tree, temperature: float, top_k: int, mixed: bool, chance: int
) -> None:
    """As on a device: all slots' tokens are drawn, and the kernel walks along them. A batch of requests with settings
    of their own has a sampler for each."""
    random = torch.Generator().manual_seed(chance)
    rows = Ragged.of(tree.alive)
    logits = torch.randn(len(rows.row) + 3, 5, generator=random)  # and slots of no row
    tree.token.copy_(torch.randint(0, 5, tree.token.shape, generator=random))
    first, verified, count = tree.token[:, :1], SlotLogits(logits, rows.packed_index), len(tree.token)
    root, ones = torch.randint(0, 1000, (count,), generator=random), torch.ones(count, dtype=torch.long)
    sampling = Sampling(temperature, top_k=top_k if temperature else 0, seed=5)
    if mixed:
        sampler = MixedSampler([replace(sampling, seed=row % 2) for row in range(count)], 5, first, ones)
    else:
        sampler = TargetSampler(sampling, 5, first, ones, range(3, 3 + count))
    with mock.patch.object(walk, "serves", return_value=False):
        expected = sampler.accept(tree, verified, root, "target-only")
        with mock.patch.object(walk, "on_device", return_value=True):
            found = sampler.accept(tree, verified, root, "target-only")
    assert_same_path(found, expected)


@settings(max_examples=80, deadline=None)
@given(trees(), st.integers(1, 3000), st.integers(0, 2**31))
def test_paths_are_those_of_torch(tree: Tree, vocabulary: int, seed: int) -> None:
    """Few different logits, so that equal ones are common, and few tokens, so that paths are long."""
    random = torch.Generator().manual_seed(seed)
    rows = Ragged.of(tree.alive)
    logits = torch.randint(-2, 3, (len(rows.row), vocabulary), generator=random).float()
    logits[:, : vocabulary // 2] -= 9  # the first of the largest is anywhere
    tree.token.copy_(torch.randint(0, 2, tree.token.shape, generator=random) + vocabulary // 2)
    whole = SlotLogits(logits, rows.packed_index)
    wide = SlotLogits(logits.double(), rows.packed_index)  # which torch walks along
    assert walk.serves(whole.values)
    assert not walk.serves(wide.values)
    found, expected = accept_greedily(tree, whole), accept_greedily(tree, wide)
    assert_same_path(found, expected)


@pytest.mark.skipif(walk.triton is None, reason="triton is not installed")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy says when the interpreter meets -inf or NaN
@settings(max_examples=40, deadline=None)
@given(trees(), st.integers(0, 2**31), st.sampled_from([None, math.nan, math.inf, -math.inf]))
def test_the_kernels_paths_are_those_of_c(tree: Tree, seed: int, broken: float | None) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = Ragged.of(tree.alive)
    logits = torch.randint(-2, 3, (len(rows.row), 7), generator=random).float()
    if broken is not None:
        logits[torch.randint(len(logits), (1,), generator=random)] = broken
    tree.token.copy_(torch.randint(0, 3, tree.token.shape, generator=random))
    trees = rows.packed_index, tree.token, tree.parent, tree.alive
    expected = walk.walk(logits, *trees)
    there = (column.to(DEVICE) for column in (logits, logits.argmax(-1), *trees))
    found = walk.Walk(*(column.cpu() for column in walk.triton_walk(*there)))
    finite = expected.largest.isfinite()
    assert found.largest.isfinite().equal(finite)
    assert found.largest[finite].equal(expected.largest[finite].double())
    for row in finite.nonzero()[:, 0].tolist():
        path = slice(int(expected.length[row]) + 1)
        assert found.slots[row, path].equal(expected.slots[row, path])
        assert found.slots[row, path.stop :].eq(-1).all()
    assert found.length[finite].equal(expected.length[finite])
    assert found.bonus[finite].equal(expected.bonus[finite])


@settings(max_examples=80, deadline=None)
@given(
    trees(),
    st.integers(2, 3000),
    st.sampled_from([0.01, 0.3, 1.0, 7.0]),
    st.integers(-(2**63), 2**64),
    st.integers(0, 2**31),
)
def test_sampled_paths_are_those_of_torch(
    tree: Tree, vocabulary: int, temperature: float, seed: int, chance: int
) -> None:
    random = torch.Generator().manual_seed(chance)
    rows = Ragged.of(tree.alive)
    logits = torch.randn(len(rows.row), vocabulary, generator=random) * 3
    logits[:, :2] += 4  # tokens of the tree, so that paths are long
    tree.token.copy_(torch.randint(0, 2, tree.token.shape, generator=random))
    first, verified = tree.token[:, :1], SlotLogits(logits, rows.packed_index)
    root = torch.randint(0, 1000, (len(first),), generator=random)
    sampler = TargetSampler(
        Sampling(temperature, seed=seed), vocabulary, first, torch.ones_like(root), range(3, 3 + len(first))
    )
    found = sampler.accept(tree, verified, root, "target-only")
    with mock.patch.object(walk, "serves", return_value=False):
        expected = sampler.accept(tree, verified, root, "target-only")
    assert_same_path(found, expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("vocabulary", [3, 40, 5000])
def test_only_logits_on_the_way_must_be_finite(broken: float, vocabulary: int, temperature: float) -> None:
    """The walk is from the root to slot 2; slot 1 is a child that the target does not take."""
    children = torch.tensor([[[0, 1]]]), torch.zeros(1, 1, 2), torch.zeros(1, 1)
    tree = Tree.root(torch.tensor([5]))
    tree = tree.extend(tree.children(torch.tensor([[0]]), *children))
    logits = torch.zeros(3, vocabulary)
    logits[0, 1] = 100.0
    root = torch.tensor([7])
    sampler = TargetSampler(Sampling(temperature), vocabulary, torch.tensor([[5]]), torch.ones_like(root))
    for slot in range(3):
        changed = logits.clone()
        changed[slot, 0 if broken == -math.inf else -1 :] = broken
        verified = SlotLogits(changed, torch.arange(3)[None])
        if slot == 1:
            assert sampler.accept(tree, verified, root, "target-only").slots.tolist() == [[0, 2]]
        else:
            with pytest.raises(InputError, match="NaN or infinity"):
                sampler.accept(tree, verified, root, "target-only")


def keys(count: int, seed: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 1500), st.sampled_from([0.0, 0.1, 2.0, 30.0, 1e6]), st.floats(0, 1), st.integers(0, 2**31))
def test_draws_are_those_of_torch(vocabulary: int, scale: float, excluded: float, seed: int) -> None:
    """Equal logits, nearly equal ones, large ones (a temperature near 0), and tokens that top-p has taken out."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, vocabulary + 3, generator=random)[:, :vocabulary] * scale
    out = torch.rand(logits.shape, generator=random) < excluded
    out[:, seed % vocabulary] = False
    logits[out] = -math.inf
    assert walk.serves(logits)
    assert walk.draw(logits, keys(6, seed)).tolist() == gumbel_max(logits, keys(6, seed)).tolist()


@pytest.mark.parametrize("vocabulary", [49_152, 128_256])
def test_draws_from_large_vocabularies(vocabulary: int) -> None:
    """Where the most probable token hardly ever wins, and where it nearly always does."""
    torch.manual_seed(0)
    logits = torch.randn(40, vocabulary) * torch.linspace(0, 6, 40)[:, None]
    found = walk.draw(logits, keys(40, 1))
    assert found.tolist() == gumbel_max(logits, keys(40, 1)).tolist()
    assert len(set(found.tolist())) > 20


def test_draws_follow_the_law() -> None:
    torch.manual_seed(1)
    logits, count = torch.randn(300) * 2, 60_000
    drawn = walk.draw(logits.expand(count, -1), keys(count, 2))
    law = logits.double().softmax(-1) * count
    common = law >= 5
    counts = torch.bincount(drawn, minlength=300).double()
    observed = [*counts[common].tolist(), counts[~common].sum().item()]
    expected = [*law[common].tolist(), law[~common].sum().item()]
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_what_has_gaps_or_another_dtype_is_left_to_torch() -> None:
    logits = torch.zeros(2, 8)
    assert not walk.serves(logits.double())
    assert not walk.serves(logits[:, ::2])
    assert walk.serves(logits[:, :4])
