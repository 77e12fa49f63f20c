"""Policies for a loaded pair: by their text, with its classifier, and with budgets by costs on this machine."""

from functools import partial
from numbers import Integral
from pathlib import Path

from c2t.classifier import TreeClassifier
from c2t.costs.store import costs_of
from c2t.errors import check_kind
from c2t.models.loading.load import Pair
from c2t.policies.budget import Budget
from c2t.policies.spec import parse
from c2t.protocols import Policy


def policy_for(pair: Pair, policy: Policy | str) -> Policy:
    """Return the policy that a text describes, as the command line writes it: `threshold:threshold=0.1,levels=3`; a
    policy as it is. InputError as `c2t.policies.spec.parse`."""
    if not isinstance(policy, str):
        return policy

    def classifier(name: str | Path = pair.classifier) -> TreeClassifier:
        return TreeClassifier.from_pretrained(name, device=pair.target.device)

    return parse(policy, classifier, costs=partial(costs_of, pair))


def with_budget(pair: Pair, policy: Policy, budget: int | str | Path) -> Budget:
    """Return the policy with a budget: a number of nodes, or costs ("auto" or a file)."""
    check_kind("budget", budget, Integral | str | Path, "a number of tokens, auto, or a file of costs")
    if isinstance(budget, Integral):
        return Budget(policy, budget)
    Budget(policy, nodes=1)  # raises InputError for a policy without budgets before measuring costs
    return Budget(policy, costs=costs_of(pair, policy, None if budget == "auto" else budget))
