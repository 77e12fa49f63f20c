"""Medusa's static tree: its construction one node at a time, the tree it shapes, and files of accuracies."""

from math import prod
from pathlib import Path

import pytest

from c2t.errors import InputError
from c2t.policies import MedusaTree
from c2t.policies.medusa_tree import Accuracies, best_paths
from c2t.policies.spec import describe, parse
from tests.policies.plain_trees import ROOT, paths_of, ranked, tables
from tests.toys import TableDraft

RATES = {
    "falling": ((0.6, 0.2, 0.1), (0.5, 0.2, 0.1), (0.4, 0.1, 0.05)),
    "a higher rank is better": ((0.2, 0.5, 0.1), (0.1, 0.2, 0.3)),
    "ties": ((0.5, 0.25), (0.5, 0.25), (0.5, 0.5), (0.5, 0.25)),
    "some never": ((0.7, 0.0, 0.1), (0.0, 0.3), (0.2,)),
    "certain": ((1.0,), (1.0, 0.0), (0.5, 0.5)),
}


def one_at_a_time(rates: tuple[tuple[float, ...], ...], count: int) -> list[tuple[int, ...]]:
    """Always the child, of the root or a node that is there, with the greatest product along its path."""
    tree: list[tuple[int, ...]] = []
    for _ in range(count):
        room = [
            (*parent, rank)
            for parent in [(), *tree]
            if len(parent) < len(rates)
            for rank in range(len(rates[len(parent)]))
        ]
        worth = {path: prod(rates[depth][rank] for depth, rank in enumerate(path)) for path in room if path not in tree}
        found = [path for path in worth if worth[path] > 0]
        if found:
            tree.append(max(found, key=lambda path: (worth[path], -len(path), [-rank for rank in path])))
    return tree


@pytest.mark.parametrize("count", [1, 2, 5, 12, 200])
@pytest.mark.parametrize("name", RATES)
def test_nodes_join_by_falling_product(name: str, count: int) -> None:
    assert list(best_paths(RATES[name], count)) == one_at_a_time(RATES[name], count)


def test_the_tree_has_these_ranks() -> None:
    logits, policy = tables(0), MedusaTree(Accuracies(RATES["a higher rank is better"], "toy"), N=8)
    draft = TableDraft(logits)
    tree = policy(draft, ROOT)
    for row in range(3):
        expected = []
        for ranks in sorted(policy.paths, key=lambda path: (len(path), path)):
            path = ()
            for rank in ranks:
                path = (*path, ranked(logits, row, path)[rank][1])
            expected.append(path)
        assert paths_of(tree, row) == expected
    assert len(draft.expanded) == policy.levels == 2
    assert policy.K == 3


def test_a_file_is_read_and_named(tmp_path: Path) -> None:
    place = tmp_path / "accuracies.json"
    place.write_text('{"draft": "abc", "accuracies": [[0.5, 0.25], [0.25]]}')
    policy = parse(f"static:accuracies={place},N=4", lambda: None)
    assert policy == MedusaTree(Accuracies(((0.5, 0.25), (0.25,)), str(place)), N=4)
    assert policy.paths == ((0,), (1,), (0, 0))
    assert parse(describe(policy), lambda: None) == policy
    assert describe(policy, brief=True) == "static:N=4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be an object; measure them with"),
        ('{"accuracies": []}', "accuracies = "),
        ('{"accuracies": [[]]}', "accuracies.0"),
        ('{"accuracies": [[1.5]]}', "accuracies.0.0 = 1.5 must be at most 1"),
        ('{"accuracies": [["0.5"]]}', "accuracies.0.0"),
        ('{"accuracies": [[NaN]]}', "accuracies.0.0"),
        ('{"accuracies": [[0.9, 0.9]]}', "sum to at most 1"),
        ('{"accuracies": [[0.0], [0.5]]}', "first depth are all 0"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    place = tmp_path / "accuracies.json"
    place.write_text(text)
    with pytest.raises(InputError, match=message):
        parse(f"static:accuracies={place}", lambda: None)


def test_what_is_missing_or_too_large_is_named(tmp_path: Path) -> None:
    rates = ((0.001,) * 1000,) * 4
    with pytest.raises(InputError, match="static needs accuracies"):
        parse("static", lambda: None)
    with pytest.raises(InputError, match=r"no\.json: cannot be read"):
        parse(f"static:accuracies={tmp_path / 'no.json'}", lambda: None)
    with pytest.raises(InputError, match="trees of up to more than"):
        MedusaTree(Accuracies(RATES["falling"], "toy"), N=10**30)
    with pytest.raises(InputError, match="N = 1 must be at least 2"):
        MedusaTree(Accuracies(rates, "toy"), N=1)


def test_accuracies_that_sum_to_1_but_for_their_six_digits_are_taken() -> None:
    assert len(MedusaTree(Accuracies((tuple(round(1 / 6, 6) for _ in range(6)),), "all"), N=7).paths) == 6
