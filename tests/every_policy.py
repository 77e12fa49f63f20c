"""One list of policies for the tests that hold of all of them: every class, and variants that behave differently."""

from dataclasses import dataclass

import torch

from c2t.policies import (
    C2T,
    DDD,
    MCSD,
    Budget,
    CaDDTree,
    Chain,
    ConfidenceChain,
    DyJoint,
    DyMax,
    DySpec,
    DySpecThreshold,
    Eagle1,
    Eagle2,
    EntropyTree,
    JointThreshold,
    MCSDPlus,
    MedusaTree,
    OptTree,
    Plain,
    SampledChain,
    Sequoia,
    SpecInfer,
    Talon,
)
from c2t.policies.medusa_tree import Accuracies
from c2t.policies.round_costs import Curve, Overhead, Profile, RoundCosts
from c2t.protocols import Policy
from tests.toys import toy_classifier


@dataclass(frozen=True)
class Case:
    """nodes: tokens with the root that a tree has at most. levels: of drafted nodes, and draft forwards a round, at
    most."""

    policy: Policy
    nodes: int
    levels: int


def any_function(entropy: torch.Tensor) -> torch.Tensor:
    return (3 * entropy).round().long().clamp(max=3)


def for_rows(policy: Policy, rows: int) -> Policy:
    """The policy with a budget for so many rows, where it has one for four."""
    if not isinstance(policy, Budget):
        return policy
    nodes, costs = policy.nodes and policy.nodes * rows // 4, policy.costs
    if costs:
        sizes = tuple(size * rows // 4 for size in costs.verify.sizes)
        costs = costs._replace(verify=costs.verify._replace(sizes=sizes))
    return Budget(policy.policy, nodes, costs)


def _eagle2(K: int, levels: int, N: int | None, **ablation) -> Case:
    return Case(Eagle2(K, levels, N, **ablation), N or 1 + K + (levels - 1) * K * K, levels)


def _c2t(levels: int, nodes: int, seed: int = 0, label: str = "accepted", **settings) -> Case:
    return Case(C2T(toy_classifier(seed, label=label), levels=levels, **settings), nodes, levels)


def _entropy(branching, nodes: int, levels: int = 4, **settings) -> Case:
    return Case(EntropyTree(branching, levels, **settings), nodes, levels)


def toy_costs(levels: int, a_token: float = 0.05, per_level: float = 0.1) -> RoundCosts:
    """Costs in units of a forward over one token; of a policy that accepts half of what it drafts on each level."""
    curve = Curve((1, 101), (1.0, 1.0 + 100 * a_token))
    accepted = tuple(tuple(min(nodes, 2 * levels) / 4 for nodes in range(9)) for levels in range(1, levels + 1))
    profile = Profile((1.0,) + (2.0,) * (levels - 1), tuple(map(float, range(9))), accepted)
    return RoundCosts(curve, Curve((1,), (per_level,)), Overhead(), profile)


EVERY_POLICY: dict[str, Case] = {
    "plain": Case(Plain(), 1, 0),
    "chain": Case(Chain(4), 5, 4),
    "dymax": Case(DyMax(0.3, levels=6), 7, 6),
    "dyjoint": Case(DyJoint(0.08, levels=6), 7, 6),
    "confidence chain": Case(ConfidenceChain("margin", slope=0.1, length=5), 6, 5),
    "c2t chain": _c2t(6, 7, beta=0.2, K=1, W=1),
    "eagle1": Case(Eagle1(), 26, 5),
    "static": Case(MedusaTree(Accuracies(((0.5, 0.2, 0.1), (0.4, 0.2), (0.3, 0.1)), "toy"), N=12), 12, 3),
    "eagle2": _eagle2(4, 4, 12),
    "eagle2 full": _eagle2(3, 3, None),
    "eagle2 by confidence": _eagle2(4, 4, 12, expand="confidence"),
    "eagle2 not reranked": Case(Eagle2(3, 4, reranked=False), 13, 4),
    "eagle2 neither": Case(Eagle2(3, 4, expand="confidence", reranked=False), 13, 4),
    "c2t": _c2t(5, 21, beta=0.25, K=4, W=4),
    "c2t conditional": _c2t(5, 21, label="accepted_given_parent", beta=0.1, K=4, W=4),
    "c2t naive": _c2t(4, 30, 1, beta=0.3, K=3, W=None, max_width=8, max_nodes=30),
    "threshold": Case(JointThreshold(0.03, K=5, W=6, levels=5), 31, 5),
    "threshold naive": Case(JointThreshold(0.05, K=5, W=None, levels=5, max_nodes=24), 24, 5),
    "opttree": Case(OptTree(N=16, K=5, levels=6), 16, 6),
    "caddtree": Case(CaDDTree(slope=0.1, N=16, K=5, levels=4), 16, 4),
    "opttree shallow": Case(OptTree(N=16, delta=0.6, K=5, levels=6), 16, 6),
    "talon": Case(Talon(N=20, K=5, levels=8), 20, 8),
    "talon narrow": Case(Talon(N=20, mu=0.5, K=3, levels=8), 20, 8),
    "ddd": Case(DDD(0.4, first_check=1, every=1, K=4, levels=5, N=15), 15, 5),
    "entropy": _entropy("published", 100, max_nodes=100),
    "entropy static": _entropy("static", 31),
    "entropy early stop": _entropy("early_stop", 7, 6),
    "entropy naive width": _entropy("naive_width", 22, 6, leaf_above=1.0),
    "entropy dynamic depth": _entropy("dynamic_depth", 40, max_nodes=40),
    "entropy function": _entropy(any_function, 60, max_nodes=60),
    "sampled chain": Case(SampledChain(4), 5, 4),
    "specinfer": Case(SpecInfer((3, 2, 1)), 16, 3),
    "specinfer widening": Case(SpecInfer((1, 2, 3), temperature=0.7), 10, 3),
    "mcsd": Case(MCSD((3, 2, 1)), 16, 3),
    "mcsd wide": Case(MCSD((8,), temperature=1.5), 9, 1),
    "mcsd+": Case(MCSDPlus(W=4, D=3), 17, 4),
    "mcsd+ one fork": Case(MCSDPlus(W=1, D=4), 6, 5),
    "sequoia": Case(Sequoia((0.5, 0.2, 0.1, 0.05), N=14, levels=4), 14, 4),
    "dyspec": Case(DySpec(N=10, K=4), 10, 9),
    "dyspec few passes": Case(DySpec(N=14, K=3, passes=2, temperature=1.0), 14, 2),
    "dyspec threshold": Case(DySpecThreshold(1 / 8, K=4, levels=4, temperature=0.8), 33, 4),
    "dyspec threshold narrow": Case(DySpecThreshold(1 / 30, K=4, levels=3, max_width=3, temperature=1.0), 10, 3),
    "budget": Case(Budget(Eagle2(4, 4, None), nodes=22), 22, 4),
    "budget by costs": Case(
        Budget(C2T(toy_classifier(), beta=0.05, K=4, W=4, levels=5), costs=toy_costs(5, a_token=0.03)), 21, 5
    ),
}
SHARED = [name for name, case in EVERY_POLICY.items() if isinstance(case.policy, Budget)]  # one budget for all rows
EXACT = [name for name, case in EVERY_POLICY.items() if case.policy.exact]
ONE_OF_EACH = list({type(case.policy): name for name, case in reversed(EVERY_POLICY.items())}.values())  # class's first
SAMPLED = [name for name, case in EVERY_POLICY.items() if case.policy.proposal == "sampled"]
