"""The parts of a round add up to the whole, and the clocks are taken off again."""

import pytest
import torch

from c2t.models.loading.load import Pair, load_pair
from c2t.models.target.target import TargetSession
from c2t.policies.eagle2 import Eagle2
from c2t.policies.plain import Plain
from c2t.sampling import Sampling
from pipelines.bench.breakdown import PARTS, Rounds
from tests.rounding import figure

PROMPT = [5, 9, 40, 7]


@pytest.mark.parametrize("policy", [Plain(), Eagle2(K=3, levels=2, N=6)], ids=["plain", "tree"])
def test_parts_add_up(small_pair: Pair, policy) -> None:
    forward, rounds = TargetSession.forward, Rounds(small_pair, policy, Sampling(), 16)
    rounds.run(PROMPT)
    rounds.watch(PROMPT)
    assert TargetSession.forward is forward
    found = rounds.figures()
    assert sum(found["parts"].values()) == figure(found["watched"])
    assert set(rounds.clock.seconds) <= set(PARTS)
    drafted = {part: spent for part, spent in found["parts"].items() if part.startswith("draft") or part == "ranking"}
    assert all(spent > 0 for spent in drafted.values()) == isinstance(policy, Eagle2)
    assert min(found["parts"]["target layers"], found["parts"]["target LM head"], found["parts"]["acceptance"]) > 0
    assert found["gamma"] == (6 if isinstance(policy, Eagle2) else 1)


def test_a_packed_target_has_an_lm_head_too() -> None:
    """Its sessions keep the packed copy, and do not ask the target."""
    rounds = Rounds(load_pair("tiny", dtype=torch.float32), Plain(), Sampling(), 8)
    rounds.run(PROMPT)
    rounds.watch(PROMPT)
    assert rounds.figures()["parts"]["target LM head"] > 0
