"""The policy that c2t tune chose, for commands with --tuned."""

from c2t.classifier import TreeClassifier
from c2t.cli import shared
from c2t.errors import InputError
from c2t.models.loading.load import Pair, with_ngrams
from c2t.policies.spec import parse
from c2t.protocols import Policy
from c2t.storage.paths import is_name
from c2t.study import autotune_cache as tuning


def tuned_policy(
    pair: Pair, batch: int, temperature: float, reference: str | None, tensor_parallel: bool = False
) -> tuple[Pair, Policy, tuning.Tuned]:
    """Return what c2t tune chose for so many prompts of this pair at this temperature on this device, and the pair with
    its draft. reference: of --classifier. InputError for a policy that reads a classifier by a path or a Hub id, unless
    that is given or the pair's own: a file of the cache cannot ask for one."""
    entry = tuning.lookup(tuning.key(pair, batch, temperature))
    pair = with_ngrams(pair) if entry.ngrams else pair
    costs = shared.costs(pair, tensor_parallel)
    load = shared.Classifier(pair.classifier, entry.classifier, pair.target.device)

    def classifier(name: str | None = None) -> TreeClassifier:
        if name is None and not is_name(entry.classifier) and entry.classifier not in (reference, str(pair.classifier)):
            raise InputError(f"the policy was tuned with another classifier: give --classifier {entry.classifier}")
        return load(name)

    return pair, parse(entry.policy, classifier, costs=costs), entry


def check_tuned_with(entry: tuning.Tuned, reference: str | None) -> None:
    if reference not in (None, entry.classifier):
        raise InputError(
            f"--classifier {reference}: the policy was tuned with {entry.classifier}; leave the option out"
        )
