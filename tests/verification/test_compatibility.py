"""A policy's networks are on the target's device."""

from typing import Any

import pytest
import torch

from c2t import C2T, Eagle2, SpeculativeDecoder
from c2t.batching import BatchDecoder
from c2t.hf import TreeDecoding
from c2t.models.loading.load import load_pair
from c2t.policies import MCSDPlus
from c2t.policies.budget import Budget
from c2t.verification.compatibility import on_device
from tests.toys import FAMILIES, language_model, toy_classifier

CPU = torch.device("cpu")
ELSEWHERE = torch.device("meta")


def away(policy: C2T) -> C2T:
    return on_device(policy, ELSEWHERE)


def test_a_copy_is_moved_and_the_callers_own_stays() -> None:
    policy = C2T(toy_classifier(), 0.3, K=4)
    moved = away(policy)
    assert moved.classifier.output.weight.device == ELSEWHERE
    assert (moved.beta, moved.K) == (0.3, 4)
    assert policy.classifier.output.weight.device == CPU
    assert away(Budget(policy, nodes=9)).policy.classifier.hidden.weight.device == ELSEWHERE
    assert away(MCSDPlus(W=2, D=2, decision=toy_classifier())).decision.hidden.weight.device == ELSEWHERE


def test_where_nothing_moves_the_policy_is_the_same_object() -> None:
    for policy in (C2T(toy_classifier()), Budget(C2T(toy_classifier()), nodes=9), Eagle2(), MCSDPlus(W=2, D=2)):
        assert on_device(policy, CPU) is policy
    assert away(Eagle2()) == Eagle2()


@pytest.mark.parametrize("decoder", [SpeculativeDecoder, BatchDecoder])
def test_decoders_move_the_policy_to_their_target(decoder: Any) -> None:
    """Here from a device of no memory, of which only the shapes come back."""
    policy = away(C2T(toy_classifier(), 0.3))
    with pytest.raises(NotImplementedError, match="meta tensor"):
        decoder(load_pair("tiny"), policy)


def test_in_generate_too() -> None:
    model = language_model(FAMILIES["llama"])
    decoding = TreeDecoding("lookup", policy=away(C2T(toy_classifier(), 0.3)))
    with pytest.raises(NotImplementedError, match="meta tensor"):
        model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, custom_generate=decoding)
