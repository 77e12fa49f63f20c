"""The policy that a measurement of speed is about: the one given, else the one that `c2t tune` found."""

from typing import Annotated

import typer

from c2t.cli import shared
from c2t.decoding import Policy
from c2t.models.pairs import Pair
from c2t.policies.spec import parse
from c2t.study import autotune_cache as tuning

PolicyText = Annotated[
    str | None,
    typer.Option("--policy", help="Policy with its settings.", show_default="what c2t tune found on this machine"),
]


def policy_of(pair: Pair, text: str | None, batch: int = 1) -> Policy:
    """Return the policy; InputError, with the command that finds one, where nothing was tuned."""
    if text is not None:
        return parse(text, shared.classifier(pair, None))
    entry = tuning.lookup(tuning.key(pair, batch))
    return parse(entry.policy, shared.classifier(pair, entry.classifier))
