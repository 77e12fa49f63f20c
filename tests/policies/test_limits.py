"""What a policy needs is estimated before it starts, and settings of the wrong type are wrong input from Python too."""

import copy

import pytest

from c2t.errors import InputError
from c2t.policies import (
    C2T,
    DDD,
    MCSD,
    Chain,
    DyMax,
    DySpec,
    DySpecThreshold,
    Eagle2,
    EntropyTree,
    JointThreshold,
    MCSDPlus,
    OptTree,
    SampledChain,
    Sequoia,
    SpecInfer,
    Talon,
)
from c2t.policies.spec import parse
from tests.toys import toy_classifier


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eagle2:levels=1000000", "up to 1,000,000 levels; at most 256 fit: lower K or levels or N"),
        ("eagle2:K=2000,levels=8", "up to 28,002,000 candidates; at most 8,388,608 fit"),
        ("eagle2:N=none,K=64,levels=4", "up to 12,353 tokens; at most 8,192 fit"),
        ("eagle2:reranked=false,K=1000,levels=9", "up to 9,001 tokens"),
        ("c2t:K=5,levels=100000", "up to 100,000 levels"),
        ("c2t:W=none,max_width=1000000,max_nodes=1000000", "up to 1,000,000 tokens"),
        ("threshold:max_nodes=100000,W=100000,levels=200", "up to 100,000 tokens"),
        ("chain:length=1000000", "up to 1,000,000 levels"),
        ("dymax:levels=1000000", "up to 1,000,000 levels"),
        ("sampled-chain:length=1000000", "up to 1,000,000 levels"),
        ("sequoia:N=1000000,acceptance=0.5", "up to 1,000,000 tokens"),
        ("sequoia:N=10,acceptance=" + "x".join(["0"] * 1_000_000), "up to 100,000,000 candidates"),
        ("mcsd:config=1000x1000x1000", "up to 1,001,001 tokens"),
        ("specinfer:config=100000", "up to 100,001 tokens"),
        ("specinfer:config=" + "x".join(["9"] * 100_000), "up to 100,000 levels"),
        ("specinfer:config=" + "9" * 4000, "up to more than 10.15 tokens"),
        ("mcsd+:W=9000", "up to 54,001 tokens"),
        ("dyspec:N=1000000000", "up to 1,000,000,000 tokens"),
        ("dyspec-threshold:max_width=1000000", "up to .* tokens"),
        ("opttree:N=8000,K=8000", "up to 64,000,000 candidates"),
        ("talon:N=1000000", "up to 1,000,000 tokens"),
        ("ddd:levels=300", "up to 300 levels"),
        ("entropy:max_width=10000,max_nodes=100000,levels=200", "up to 100,000 tokens"),
    ],
)
def test_what_cannot_fit_is_refused_by_its_size(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"trees of {message}") as raised:
        parse(text, toy_classifier)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("policy", "field", "value"),
    [
        (Eagle2(), "N", -1),
        (Eagle2(), "K", True),
        (Eagle2(), "K", "x"),
        (Eagle2(), "expand", 3),
        (Eagle2(), "reranked", "no"),
        (C2T(toy_classifier()), "classifier", "tiny"),
        (C2T(toy_classifier()), "K", "x"),
        (C2T(toy_classifier()), "beta", "x"),
        (C2T(toy_classifier()), "beta", True),
        (C2T(toy_classifier()), "M", "all"),
        (SpecInfer(), "config", 3),
        (SpecInfer(), "config", (True, 2)),
        (SpecInfer(), "config", ("a",)),
        (MCSD(), "config", ()),
        (MCSD(), "temperature", "hot"),
        (MCSDPlus(), "decision", 3),
        (Chain(), "length", "x"),
        (SampledChain(), "temperature", None),
        (Sequoia((0.5,)), "acceptance", 0.5),
        (Sequoia((0.5,)), "acceptance", (0.5, "x")),
        (OptTree(), "delta", "x"),
        (DyMax(), "threshold", True),
        (JointThreshold(), "threshold", "x"),
        (EntropyTree(), "branching", 3),
        (EntropyTree(), "leaf_above", "x"),
        (Talon(), "mu", None),
        (DDD(), "every", 0.5),
        (DySpec(), "passes", [3]),
        (DySpecThreshold(), "max_width", "x"),
    ],
)
def test_wrong_settings_from_python_are_wrong_input(policy: object, field: str, value: object) -> None:
    """They are put in afterwards: in these tests beartype would refuse them before the policy does."""
    policy = copy.copy(policy)
    object.__setattr__(policy, field, value)
    with pytest.raises(InputError, match=f"^{type(policy).__name__}: ") as raised:
        policy.__post_init__()
    assert "\n" not in str(raised.value)
