"""Policies by name and settings in text."""

import pytest

from c2t.classifier import TreeClassifier
from c2t.errors import InputError
from c2t.policies import C2T, POLICIES, Eagle2, Plain
from c2t.policies.spec import describe, parse, split


def classifier() -> TreeClassifier:
    return TreeClassifier()


def no_classifier() -> TreeClassifier:
    raise AssertionError("nobody asked for a classifier")


def test_split() -> None:
    assert split("plain,eagle2:N=60,K=10, c2t:beta=0.3,eagle2") == [
        "plain",
        "eagle2:N=60,K=10",
        "c2t:beta=0.3",
        "eagle2",
    ]


def test_settings_are_read() -> None:
    assert parse("plain", no_classifier) == Plain()
    assert parse("eagle2:N=none,K=4", no_classifier) == Eagle2(K=4, N=None)
    policy = parse("c2t:beta=0.7, W=None, M=trained", classifier)
    assert parse("eagle2:reranked=false", no_classifier).reranked is False
    assert parse("specinfer:config=3x2", no_classifier).config == (3, 2)
    assert (policy.beta, policy.W, policy.M, policy.K) == (0.7, None, "trained", C2T.K)


def test_defaults_fill_in_what_the_text_leaves_out() -> None:
    assert parse("c2t", classifier, beta=0.7).beta == 0.7
    assert parse("c2t:beta=0.6", classifier, beta=0.7).beta == 0.6
    assert parse("c2t", classifier, beta=None).beta == TreeClassifier().config.beta
    assert parse("eagle2", no_classifier, beta=0.7) == Eagle2()


@pytest.mark.parametrize("name", POLICIES)
def test_describe_is_read_back(name: str) -> None:
    try:
        policy = parse(name, classifier)
    except InputError as error:
        assert "needs" in str(error)  # noqa: PT017
        return
    again = parse(describe(policy), classifier)
    assert describe(again) == describe(policy)
    assert "max_width" not in describe(policy, brief=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eagle", "no policy is called 'eagle'; known: plain"),
        ("", "no policy is called ''"),
        ("eagle2:beta=1", "eagle2 has no setting 'beta'; known: K, levels, N, M"),
        ("plain:K=1", "plain has no setting 'K'; known: none"),
        ("c2t:classifier=x", "has no setting 'classifier'"),
        ("eagle2:K=ten", "eagle2: K = 'ten' must be a whole number$"),
        ("eagle2:K", "K = '' must be a whole number"),
        ("eagle2:K=none", "K = 'none' must be a whole number"),
        ("eagle2:N=1.5", "N = '1.5' must be a whole number or none"),
        ("c2t:beta=half", "beta = 'half' must be a number"),
        ("c2t:M=all", "M = 'all' must be a whole number or trained or none"),
        ("eagle2:expand=best", "expand = 'best' must be value or confidence"),
        ("eagle2:reranked=perhaps", "reranked = 'perhaps' must be true or false"),
        ("specinfer:config=4x2x", "config = '4x2x' must be a whole number"),
        ("sequoia", "sequoia needs acceptance"),
        ("c2t:beta=1", "beta = 1.0 must be between"),
        ("c2t:beta=0", "beta = 0.0 must be between"),
        ("c2t:beta=nan", "beta = nan must be between"),
        ("eagle2:K=0", "K = 0 must be at least 1"),
        ("eagle2:levels=0", "levels = 0 must be at least 1"),
        ("eagle2:N=0", "N = 0 must be at least 1"),
        ("c2t:W=0", "W = 0 must be at least 1"),
        ("c2t:K=-1", "K = -1 must be at least 1"),
        ("c2t:M=-3", "M = -3 must be at least 0"),
        ("eagle2:M=-4", "M = -4 must be at least 0"),
        ("mcsd+:M=-1", "M = -1 must be at least 0"),
        ("opttree:delta=nan", "delta = nan must not be negative"),
        ("entropy:leaf_above=nan", "leaf_above = nan must be an entropy"),
        ("sequoia:acceptance=nan", "acceptance rates by rank must be at least 0"),
        ("sequoia:acceptance=0.5x0.2,N=1", "N = 1 must be at least 2"),
        ("dyspec:temperature=1e-320", "draft temperature = 1e-320 must be from 0.0001 to 10000"),
    ],
)
def test_wrong_settings_say_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text, classifier)


def test_the_old_name_of_a_policy_is_read() -> None:
    """Provenance files, result lines and scripts have it."""
    old, new = (parse(f"{name}:rounds=2,of=eagle2:N=8", classifier) for name in ("rehearsed", "hierarchical"))
    assert old == new
    assert describe(old).startswith("hierarchical:rounds=2,")
