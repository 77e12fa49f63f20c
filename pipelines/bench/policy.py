"""The policy that a measurement of speed is about: the one given, else the one that `c2t tune` found."""

from functools import partial
from typing import Annotated

import typer

from c2t.classifier import TreeClassifier
from c2t.costs.policy_text import policy_for
from c2t.costs.store import costs_of
from c2t.models.loading.load import Pair, with_ngrams
from c2t.policies.spec import parse
from c2t.protocols import Policy
from c2t.study import autotune_cache as tuning

PolicyText = Annotated[
    str | None,
    typer.Option("--policy", help="Policy with its settings.", show_default="what c2t tune found on this machine"),
]


def policy_of(pair: Pair, text: str | None, batch: int = 1, temperature: float = 0.0) -> tuple[Pair, Policy]:
    """Return the pair, with n-grams in its draft if that was found to be faster, and the policy; InputError, with the
    command that finds one, where nothing was tuned. A budget's costs are those of this machine."""
    if text is not None:
        return pair, policy_for(pair, text)
    entry = tuning.lookup(tuning.key(pair, batch, temperature))
    pair = with_ngrams(pair) if entry.ngrams else pair
    return pair, parse(entry.policy, partial(classifier, entry.classifier), costs=partial(costs_of, pair))


def classifier(default: str, name: str | None = None) -> TreeClassifier:
    """Return the classifier of this name, by default `default`."""
    return TreeClassifier.from_pretrained(name or default)
