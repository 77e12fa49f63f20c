"""Chains against a loop that appends the most probable token."""

import pytest

from c2t.errors import InputError
from c2t.policies import Chain, DyJoint, DyMax
from tests.policies.plain_trees import ROOT, paths_of, ranked, tables
from tests.toys import TableDraft


def chain(logits, row: int, levels: int, goes_on) -> list[tuple[int, ...]]:
    path, joint, nodes = (), 1.0, []
    for _ in range(levels):
        p, token = ranked(logits, row, path)[0]
        if not goes_on(p, joint * p):
            break
        path, joint = (*path, token), joint * p
        nodes.append(path)
    return nodes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("policy", "goes_on"),
    [
        (Chain(5), lambda p, joint: True),
        (DyMax(0.45, levels=7), lambda p, joint: p >= 0.45),
        (DyJoint(0.08, levels=7), lambda p, joint: joint >= 0.08),
        (DyJoint(0.001, levels=4), lambda p, joint: joint >= 0.001),
    ],
    ids=["fixed", "max", "joint", "joint to the end"],
)
def test_chain_is_that_of_the_loop(policy, goes_on, seed: int) -> None:
    logits = tables(seed)
    draft = TableDraft(logits)
    tree = policy(draft, ROOT)
    expected = [chain(logits, row, policy.levels, goes_on) for row in range(3)]
    assert [paths_of(tree, row) for row in range(3)] == expected
    longest = max(map(len, expected))
    assert len(draft.expanded) == min(policy.levels, longest + 1)  # the forward that says stop
    assert not tree.capped.any()


@pytest.mark.parametrize("make", [lambda: Chain(0), lambda: DyMax(0.0), lambda: DyMax(1.2), lambda: DyJoint(0.1, 0)])
def test_wrong_settings_are_refused(make) -> None:
    with pytest.raises(InputError):
        make()
