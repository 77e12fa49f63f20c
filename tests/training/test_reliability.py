"""The reliability picture tells calibrated probabilities from others, and its intervals are honest about trees."""

import pytest
import torch

from c2t.training.metrics import Validation
from c2t.training.reliability import picture, reliability
from tests.rounding import figure


def rows(trees: int, each: int, power: float = 1.0) -> tuple[torch.Tensor, Validation]:
    """Nodes that are accepted with their probability; what is stated is its `power`."""
    generator = torch.Generator().manual_seed(0)
    true = torch.rand(trees * each, generator=generator) ** 3
    accepted = torch.rand(trees * each, generator=generator) < true
    tree = torch.arange(trees).repeat_interleave(each)
    return true**power, Validation(torch.empty(trees * each, 0), accepted, tree)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_calibrated_probabilities_alone_lie_on_the_diagonal(power: float) -> None:
    """Others are too sure or not sure enough."""
    found = reliability(*rows(trees=400, each=20, power=power))
    above, below = found.low > found.probability, found.high < found.probability
    if power == 1:
        assert (above | below).float().mean() <= 0.3
        assert found.error < 0.02, "800 rows a bin leave a standard error of 0.015 at most"
    else:
        assert (below if power < 1 else above).float().mean() > 0.7
        assert found.error > 0.05


def test_nodes_that_share_their_fate_widen_the_intervals() -> None:
    alike = (torch.rand(400, generator=torch.Generator().manual_seed(1)) < 0.2).repeat_interleave(20)
    trees = torch.arange(8000) // 20, torch.arange(8000) % 400  # all nodes of a tree alike, or each of another tree
    found = [reliability(torch.full((8000,), 0.2), Validation(torch.empty(8000, 0), alike, tree)) for tree in trees]
    widths = [float(one.high - one.low) for one in found]
    assert widths[0] > 2 * widths[1]


def test_all_alike_is_one_bin() -> None:
    validation = Validation(torch.empty(3, 0), torch.tensor([True, True, False]), torch.tensor([0, 0, 1]))
    found = reliability(torch.full((3,), 0.5), validation)
    assert found.probability.tolist() == [0.5]
    assert found.accepted.tolist() == [figure(2 / 3)]
    assert picture(found, "x").axes[0].get_xscale() == "log"
