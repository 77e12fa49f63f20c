"""One budget for all rows: the most confident nodes of all, parents first, as many as pay."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from c2t.errors import InputError
from c2t.kernels.budget import RoundModel
from c2t.policies import (
    C2T,
    MCSD,
    Budget,
    Chain,
    ConfidenceChain,
    Eagle1,
    Eagle2,
    JointThreshold,
    MCSDPlus,
    OptTree,
    Plain,
)
from c2t.policies.budget import STEP, BudgetSession, row_weights, weights_of
from c2t.policies.round_costs import LEAD, Attention, Curve, Overhead, Profile, RoundCosts, best_gain
from c2t.policies.spec import describe, parse, split
from c2t.sampling import Sampling
from c2t.study.sweep import expand
from c2t.tree import Tree
from c2t.verification.target_verifier import generate
from tests.every_policy import toy_costs
from tests.rounding import figure
from tests.toys import (
    PROMPTS,
    TableDraft,
    deep_pairs,
    random_table,
    root_of,
    run,
    toy_classifier,
    toy_drafts,
    toy_target,
)

INNER = Eagle2(K=4, levels=3, N=None)
C2T_POLICY = C2T(toy_classifier(label="accepted_given_parent"), beta=0.001, K=4, W=6, levels=3)
FLAT = 1e-6  # seconds of a token that costs nearly nothing
SAMPLING = Sampling(temperature=0.8, seed=3)


def table_draft() -> TableDraft:
    """Rows of very different certainty."""
    table = random_table(12, seed=3)
    return TableDraft(lambda row, path: table(row, path) * (0.3, 1.0, 4.0, 9.0)[row])


def trees(policy, rows: int = 4) -> Tree:
    return policy(table_draft(), root_of(*range(rows)))


def nodes_of(tree: Tree, row: int) -> dict[tuple[int, ...], int]:
    """The alive slots of a row by their paths of tokens."""
    paths = {0: ()}
    for slot in tree.alive[row].nonzero()[1:, 0].tolist():
        paths[slot] = (*paths[int(tree.parent[row, slot])], int(tree.token[row, slot]))
    return {path: slot for slot, path in paths.items()}


@pytest.mark.parametrize("inner", [INNER, C2T_POLICY, Chain(3)], ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("nodes", [1, 4, 5, 9, 30, 1000])
def test_the_most_probable_nodes_of_all_rows_are_kept(inner, nodes: int) -> None:
    """Against a heap over plain lists: always the most probable node whose parent is in."""
    whole, policy = trees(inner), Budget(inner, nodes)
    worth = whole.log_joint.exp()
    known = [nodes_of(whole, row) for row in range(4)]
    kept = [{()} for _ in range(4)]
    while sum(map(len, kept)) < nodes:
        open_ = [
            (worth[row, slot].item(), row, path)
            for row in range(4)
            for path, slot in known[row].items()
            if path not in kept[row] and path[:-1] in kept[row]
        ]
        if not open_:
            break
        _, row, path = max(open_, key=lambda each: each[0])
        kept[row].add(path)
    found = trees(policy)
    assert [set(nodes_of(found, row)) for row in range(4)] == kept
    assert int(found.sizes.sum()) == max(4, min(nodes, int(whole.sizes.sum())))


def test_a_row_whose_draft_knows_nothing_gets_less() -> None:
    draft = TableDraft(lambda row, path: torch.tensor([1.0 + 4 * row] + [0.0] * 11))
    assert Budget(INNER, 12)(draft, root_of(0, 1)).sizes.tolist() == [8, 4]


@pytest.mark.parametrize("left", [[1, 3], [30, 90]])
def test_where_texts_end_together_those_that_lag_get_more(left: list[int]) -> None:
    draft = TableDraft(lambda row, path: random_table(12, seed=3)(0, path))
    even, behind = (Left(each, draft) for each in (None, left))
    for policy in (Budget(INNER, 12), Budget(INNER, costs=toy_costs(3))):
        equal, towards = (policy(session, root_of(0, 0)).sizes.tolist() for session in (even, behind))
        assert abs(equal[0] - equal[1]) <= 1 < towards[1] - towards[0]


def test_texts_that_come_and_go_are_worth_the_same() -> None:
    assert weights_of(None, 2) == weights_of(Left(None), 2) == row_weights(None, 2) == [1, 1]
    assert weights_of(Left([2, 6]), 2) == row_weights([2, 6], 2) == [0.5, 1.5]


class Left(BudgetSession):
    """A session of rows that may still get so many tokens, after so many."""

    def __init__(self, left: list[int] | None, draft: TableDraft | None = None, prefix: int = 0):
        self.draft, self.backlog = draft, []
        self.verifier = SimpleNamespace(left=lambda: left, prefix=[prefix])


def test_a_draft_that_is_certain_of_everything_keeps_parents() -> None:
    """Equal confidences everywhere."""
    draft = TableDraft(lambda row, path: torch.zeros(12))
    tree = Budget(INNER, 17)(draft, root_of(1, 2, 3))
    assert tree.alive.gather(1, tree.parent.clamp(min=0))[tree.alive].all()
    assert int(tree.sizes.sum()) == 17


def rate(costs: RoundCosts, tokens: float, rows: int, widths: list[int], verified: int) -> float:
    return tokens / float(costs.seconds(rows, widths, torch.tensor([verified]).numpy())[0])


def test_by_costs_the_number_of_nodes_has_the_best_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a step of the curve too: the second plateau, up to 40 tokens, is worth its price here."""
    step = Curve((4, 8, 9, 40, 41), (1.0, 1.0, 1.3, 1.3, 9.0))
    costs = toy_costs(3)._replace(verify=step, draft=Curve((1,), (0.01,)))
    monkeypatch.setattr(RoundModel.__init__, "__defaults__", (1.0,))  # every level pays
    whole, tree = trees(INNER), trees(Budget(INNER, costs=costs))
    worth = whole.log_joint[whole.alive & (whole.depth >= 0)].exp().sort(descending=True).values
    widths = [4, 16, 16]
    rates = [rate(costs, 4 + float(worth[:count].sum()), 4, widths, 4 + count) for count in range(len(worth) + 1)]
    best = max(range(len(rates)), key=rates.__getitem__)
    assert int(tree.sizes.sum()) == 4 + best
    assert rates[5] < rates[4] < rates[best], "the first dip is not the end"


def test_after_a_long_text_a_node_costs_more() -> None:
    """After STEP tokens as much as a forward without a prefix, and the reading of the prefix nothing."""
    costs = toy_costs(3, a_token=FLAT)._replace(attention=Attention(per_verified=1 / STEP))
    draft = TableDraft(lambda row, path: torch.zeros(12))

    def verified(prefix: int, costs: RoundCosts) -> int:
        return int(Budget(INNER, costs=costs)(Left(None, draft, prefix), root_of(1)).sizes.sum())

    near, far = (verified(prefix, costs) for prefix in (STEP - 1, STEP))
    assert far < near == verified(STEP, toy_costs(3, a_token=FLAT))
    assert costs.seconds(2, (), 6, STEP) == costs.seconds(2, (), 6) + 6.0
    read = costs._replace(attention=Attention(per_row=1 / STEP))
    assert read.seconds(2, (), 6, STEP) == costs.seconds(2, (), 6) + 2.0
    assert verified(STEP, read) >= near, "what a round costs anyway is shared by more tokens"
    later = costs._replace(attention=costs.attention._replace(after=STEP))
    assert verified(STEP, later) == near, "the forwards were measured after as many tokens"


def test_a_draft_is_asked_where_only_trees_after_long_texts_pay() -> None:
    """A draft that costs more than a forward after a short text, whose prefix is then what a round costs."""
    costs = toy_costs(3, per_level=2.0)
    assert not Budget(INNER, costs=costs)._ever_drafts(1)
    assert Budget(INNER, costs=costs._replace(attention=Attention(per_row=0.1)))._ever_drafts(1)


def test_nodes_bound_what_the_costs_would_add() -> None:
    cheap = toy_costs(3, a_token=FLAT)
    assert int(trees(Budget(INNER, costs=cheap)).sizes.sum()) > 20
    assert int(trees(Budget(INNER, 9, cheap)).sizes.sum()) == 9


def test_drafting_pays_up_to_a_number_of_rows() -> None:
    """And for every row the draft forwards become fewer."""
    costs = toy_costs(6, a_token=0.02, per_level=0.2)
    pays = [best_gain(costs, rows) > 1 + LEAD for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    assert pays == sorted(pays, reverse=True)
    assert pays[0]
    assert not pays[-1]


def test_without_a_level_the_draft_is_not_asked() -> None:
    dear = toy_costs(3, per_level=100.0)
    draft = table_draft()
    tree = Budget(INNER, costs=dear)(draft, root_of(1, 2))
    assert (tree.size, draft.expanded) == (1, [])


def certain_to(depth: int, rows: tuple[int, ...] = (0, 1)) -> TableDraft:
    """A draft that is certain of each token in these rows down to a depth, and knows nothing below or beside them."""
    return TableDraft(lambda row, path: torch.tensor([20.0 * (row in rows and len(path) < depth)] + [0.0] * 11))


@pytest.mark.parametrize("inner", [INNER, replace(INNER, levels=6), Chain(6)], ids=["eagle2", "deep", "chain"])
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_drafting_stops_where_the_draft_is_unsure(inner, depth: int) -> None:
    """A child promises most of what its parent is worth: below the certain path 1/12, less than a level costs."""
    draft = certain_to(depth)
    tree = Budget(inner, costs=toy_costs(inner.levels, per_level=0.2))(draft, root_of(0, 1))
    forwards = min(inner.levels, depth + 1)
    assert len(draft.expanded) == forwards
    assert tree.sizes.tolist() == [1 + min(depth, inner.levels)] * 2


def test_a_level_is_drafted_if_its_promise_pays() -> None:
    """At the break-even point by hand, at 0.5 seconds a token: one row with one certain node, 2 tokens in 1.5 seconds
    and a level; its child, of probability CHILD, makes them 2.8 in 2 seconds and two levels: a level of 1/6 seconds."""
    for per_level, forwards in ((0.17, 1), (0.16, 2)):
        costs, draft = toy_costs(2, a_token=0.5, per_level=per_level), certain_to(9)
        profile = costs.profile._replace(accepted=((0.0, *[2.0] * 8),) * 2)
        Budget(Chain(2), costs=costs._replace(profile=profile))(draft, root_of(0))
        assert len(draft.expanded) == forwards


def test_only_nodes_whose_children_pay_are_expanded() -> None:
    """Row 0 is certain, row 1 knows nothing: the second level is row 0's alone, and then only its best node."""
    draft = certain_to(9, rows=(0,))
    tree = Budget(INNER, costs=toy_costs(3))(draft, root_of(0, 1))
    assert [(slots >= 0).sum(1).tolist() for slots in draft.expanded] == [[1, 1], [1, 0], [1, 0]]
    assert tree.sizes.tolist() == [4, 1]
    assert tree.log_joint[tree.alive].isfinite().all()


@pytest.mark.parametrize("inner", [INNER, Eagle2(K=4, levels=3, N=9), C2T_POLICY, Eagle1(), OptTree(N=9, K=3, levels=3),
                                   JointThreshold(0.02, K=4, levels=3)], ids=describe)  # fmt: skip
def test_every_node_of_a_narrowed_tree_is_a_guess_of_the_draft(inner) -> None:
    """Its log-probability is that of its token after its path, so no child stands under a node that was left out."""
    table = random_table(12, seed=3)
    tree = trees(Budget(inner, costs=toy_costs(inner.levels, a_token=0.01, per_level=0.02)))
    assert tree.size > 5
    for row in range(4):
        paths = nodes_of(tree, row)
        for path, slot in paths.items():
            if path:
                scaled = (table(row, path[:-1]) * (0.3, 1.0, 4.0, 9.0)[row]).log_softmax(0)
                assert tree.log_prob[row, slot].item() == figure(scaled[path[-1]].item(), 100, torch.float32)
                assert path[:-1] in paths


@pytest.mark.parametrize(("name", "by"), [("lm", "margin"), ("dspark", "margin"), ("dspark", "confidence")])
def test_chains_cut_by_confidence_are_expanded_in_some_rows_alone(name: str, by: str) -> None:
    target, draft = deep_pairs()[name]
    policy = Budget(ConfidenceChain(by, slope=0.001, length=3), costs=toy_costs(3, a_token=0.05, per_level=0.01))
    tokens, steps = run(target, draft, policy, PROMPTS)
    assert len({size for step in steps[1:] for size in step.tree.sizes.tolist()}) > 1
    assert tokens == run(target, None, Plain(), PROMPTS)[0]


@pytest.mark.parametrize("nodes", [4, 11])
def test_a_round_verifies_at_most_its_budget(nodes: int) -> None:
    steps = generate(toy_target(), toy_drafts()["perturbed"], Budget(INNER, nodes), PROMPTS, max_new_tokens=12,
                     sampling=SAMPLING)  # fmt: skip
    sizes = [int(step.tree.sizes.sum()) for step in steps if step.tree is not None]
    assert max(sizes) == nodes
    assert len(sizes) > 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget(MCSD((2, 1)), 8), "MCSD has sampled candidates: give a policy that ranks"),
        (lambda: Budget(MCSDPlus(), 8), "MCSDPlus has target-initialised candidates"),
        (lambda: Budget(Budget(INNER, 8), 8), "Budget has a policy of its own"),
        (lambda: Budget("eagle2", 8), "'eagle2' is no policy"),
        (lambda: Budget(Eagle2, 8), "Eagle2 is a class: give an instance"),
        (lambda: Budget(INNER, 0), "nodes = 0 must be at least 1"),
        (lambda: Budget(INNER), "give nodes, or costs that were measured"),
        (lambda: Budget(INNER, costs=toy_costs(4)), "measured with trees of 4 levels, and the policy drafts 3"),
        (
            lambda: Budget(INNER, costs=toy_costs(3)._replace(overhead=Overhead(-1.0))),
            "must be positive numbers of seconds",
        ),
        (lambda: Budget(INNER, costs=toy_costs(3)._replace(verify=Curve((2, 1), (1.0, 1.0)))), "rising sizes"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


PROFILE = toy_costs(3).profile


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (PROFILE._replace(widths=(1.0,)), "for each level a width"),
        (PROFILE._replace(nodes=PROFILE.nodes[1:]), "for each level a width"),
        (PROFILE._replace(nodes=(0.0, *PROFILE.nodes[:0:-1])), "rising numbers of nodes"),
        (PROFILE._replace(widths=(1.0, -2.0, 2.0)), "no negative number"),
        (PROFILE._replace(accepted=(*PROFILE.accepted[1:], (float("inf"),) * 9)), "no negative number"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(wrong: Profile, message: str) -> None:
    with pytest.raises(InputError, match=message):
        toy_costs(3)._replace(profile=wrong).check()


def test_a_budget_in_text() -> None:
    text = "plain,budget:nodes=64,of=eagle2:N=none,K=4,budget,budget:nodes=8,threshold:threshold=0.1"
    assert split(text) == [
        "plain",
        "budget:nodes=64,of=eagle2:N=none,K=4",
        "budget",
        "budget:nodes=8",
        "threshold:threshold=0.1",
    ]
    found = parse("budget:nodes=64,of=eagle2:N=none,K=4", toy_classifier)
    assert found == Budget(Eagle2(K=4, N=None), 64)
    assert parse(describe(found), toy_classifier) == found
    assert describe(found, brief=True) == "budget:nodes=64,of=eagle2:K=4,N=None"
    assert parse("budget:nodes=5", toy_classifier).policy.classifier.name == "unnamed"


def test_without_nodes_costs_are_asked_for() -> None:
    asked = []

    def costs(policy, *file) -> RoundCosts:
        asked.append((policy, *file))
        return toy_costs(policy.levels)

    found = parse("budget:of=threshold:threshold=0.1,levels=3", toy_classifier, costs=costs)
    assert found == Budget(JointThreshold(0.1, levels=3), costs=toy_costs(3))
    assert asked == [(found.policy,)]
    assert parse("budget:nodes=none", toy_classifier, costs=costs).costs is not None
    with pytest.raises(InputError, match="budget needs nodes: budget:nodes=64"):
        parse("budget:of=plain", toy_classifier)
    with pytest.raises(InputError, match="SpecInfer has sampled"):
        parse("budget:of=specinfer", toy_classifier, costs=costs)
    with pytest.raises(InputError, match="nodes = 'many' must be a whole number or none"):
        parse("budget:nodes=many", toy_classifier)
    with pytest.raises(InputError, match="budget has no setting 'beta'"):
        parse("budget:beta=0.3", toy_classifier)
    found = parse("budget:nodes=9,costs=here.json,of=threshold:levels=3", toy_classifier, costs=costs)
    assert (found.nodes, asked[-1]) == (9, (JointThreshold(levels=3), "here.json"))
    assert len(asked) == 3, "nothing is measured for a policy that is refused"


def test_a_grid_of_budgets() -> None:
    assert expand("budget:nodes=8|16,of=eagle2:N=none|20,K=4,plain") == [
        "budget:nodes=8,of=eagle2:N=none,K=4",
        "budget:nodes=8,of=eagle2:N=20,K=4",
        "budget:nodes=16,of=eagle2:N=none,K=4",
        "budget:nodes=16,of=eagle2:N=20,K=4",
        "plain",
    ]


def test_a_budget_of_plain_decoding_is_plain_decoding() -> None:
    assert trees(Budget(Plain(), 8)).size == 1
