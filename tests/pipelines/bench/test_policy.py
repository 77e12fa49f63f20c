"""The policy of a measurement: the one given, else the tuned one of the batch size. A budget goes by measured costs."""

from pathlib import Path

import pytest

from c2t.costs import policy_text
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies.budget import Budget
from c2t.policies.spec import describe
from c2t.protocols import Policy
from c2t.study.autotune_cache import Tuned, key, store
from pipelines.bench import policy as tuned
from pipelines.bench.policy import policy_of
from tests.every_policy import toy_costs


def test_what_was_tuned_for_a_batch_may_be_a_budget(
    small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path))
    asked: list[tuple[Pair, Policy]] = []
    costs = toy_costs(2)
    for module in (policy_text, tuned):
        monkeypatch.setattr(module, "costs_of", lambda pair, policy: asked.append((pair, policy)) or costs)
    text = "budget:of=chain:length=2"
    store(key(small_pair, 2, 0.0), Tuned(text, "tiny", 1.0, {}))
    for _, found in (policy_of(small_pair, None, batch=2), policy_of(small_pair, text)):
        assert isinstance(found, Budget)
        assert found.costs is costs
        pair, policy = asked.pop()
        assert pair is small_pair
        assert describe(policy, brief=True) == "chain:length=2"
    store(key(small_pair, 2, 0.0), Tuned(text, "tiny", 1.0, {}, ngrams=True))
    mixed, _ = policy_of(small_pair, None, batch=2)
    assert mixed.draft == NgramDraft(small_pair.draft)
    assert asked.pop()[0] is mixed
    with pytest.raises(InputError, match="batch size 1 and T = 0; run c2t tune --batch 1 --temperature 0"):
        policy_of(small_pair, None)
    with pytest.raises(InputError, match="T = 1; run c2t tune --batch 2 --temperature 1"):
        policy_of(small_pair, None, 2, temperature=1.0)
