"""What a run costs and yields, on Steps made by hand."""

import torch

from c2t.costs.statistics import Statistics, Trace, total
from c2t.decoding import Step
from c2t.tree import Tree
from c2t.verify import Accepted
from tests.rounding import figure


def step(rows: list[int], tokens: list[list[int]], sizes: list[int], passes: list[int], capped: list[int]) -> Step:
    """A round that gives each row these tokens, on trees with this many alive slots."""
    count = torch.tensor([len(own) for own in tokens])
    width = max(len(own) for own in tokens)
    padded = torch.tensor([own + [99] * (width - len(own)) for own in tokens])
    column = torch.zeros(len(rows), max(sizes), dtype=torch.long)
    value = column.float()
    alive = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    tree = Tree(
        token=column,
        parent=column - 1,
        depth=column,
        rank=column,
        log_prob=value,
        log_joint=value,
        entropy=value,
        max_log_prob=value,
        score=value,
        alive=alive,
        capped=torch.tensor(capped),
    )
    accepted = Accepted(torch.zeros(len(rows), width, dtype=torch.long), count - 1, padded[:, 0])
    return Step(torch.tensor(rows), count, tree, accepted, padded, count, torch.tensor(passes))


def prefill(tokens: list[int]) -> Step:
    rows = torch.arange(len(tokens))
    return Step(rows, rows, None, None, torch.tensor(tokens)[:, None], torch.ones_like(rows), torch.zeros_like(rows))


def traced() -> Trace:
    trace = Trace(2)
    trace.add(prefill([10, 20]))
    trace.add(step([0, 1], [[11, 12, 13], [21]], [5, 3], [2, 1], [0, 4]))
    trace.add(step([1], [[22, 23, 24, 25]], [7], [3], [1]))
    return trace


def test_counts_are_per_prompt_and_rows_that_left_count_no_more() -> None:
    trace = traced()
    assert trace.finish([4, 4]) == [[10, 11, 12, 13], [20, 21, 22, 23]]
    first, second = trace.statistics
    assert first == Statistics(1, 4, 0, 0, [5], [2], [2])
    assert second == Statistics(1, 4, 2, 5, [3, 7], [0, 3], [1, 3])
    assert (second.rounds, second.verified_tokens, second.gamma) == (2, 10, 5.0)
    assert (second.tau, second.tau_with_bonus, second.draft_passes) == (1.5, 2.5, 2.0)


def test_token_identity_holds_for_each_prompt_and_in_total() -> None:
    trace = traced()
    trace.finish([2, 6])
    together = total(trace.statistics)
    for one in (*trace.statistics, together):
        assert one.prompts + sum(accepted + 1 for accepted in one.accepted) - one.cut == one.new_tokens
    assert together == Statistics(2, 8, 2, 5, [5, 3, 7], [2, 0, 3], [2, 1, 3])


def test_sums_leave_their_parts_alone() -> None:
    one, other = Statistics(1, 2, 0, 0, [3], [1], [1]), Statistics(1, 5, 1, 2, [4, 4], [1, 2], [2, 2])
    assert (one + other).rounds == 3
    assert (one.verified, other.verified) == ([3], [4, 4])
    assert (one + other).tau == figure(4 / 3)


def test_a_text_without_a_round_has_no_means() -> None:
    trace = Trace(1)
    trace.add(prefill([5]))
    assert trace.finish([1]) == [[5]]
    only = trace.statistics[0]
    assert (only.new_tokens, only.rounds, only.tau, only.tau_with_bonus, only.gamma) == (1, 0, 0, 0, 0)
    assert only.draft_passes == 0
    assert total([]) == Statistics()
