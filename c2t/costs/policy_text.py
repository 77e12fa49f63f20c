"""Policies in text for a loaded pair: with its classifier, and with costs that are measured on this machine."""

from functools import partial

from c2t.classifier import TreeClassifier
from c2t.costs.store import costs_of
from c2t.models.loading.load import Pair
from c2t.policies.spec import parse
from c2t.protocols import Policy


def policy_for(pair: Pair, policy: Policy | str) -> Policy:
    """Return the policy that a text describes, as the command line writes it: `threshold:threshold=0.1,levels=3`; a
    policy as it is. InputError as `c2t.policies.spec.parse`."""
    if not isinstance(policy, str):
        return policy

    def classifier(name: str = pair.name) -> TreeClassifier:
        return TreeClassifier.from_pretrained(name, device=pair.target.device)

    return parse(policy, classifier, costs=partial(costs_of, pair))
