"""A verifier counts the tokens before its roots, without asking the device."""

import torch

from c2t.decoding import decode
from c2t.policies import Eagle2
from c2t.sampling import Sampling
from c2t.verification.target_verifier import TargetVerifier
from tests.toys import PROMPTS, toy_drafts, toy_target

POLICY = Eagle2(K=3, levels=2, N=6)


def verifier_of(prompts: list[list[int]], limits: list[int]) -> TargetVerifier:
    return TargetVerifier(toy_target(), POLICY, prompts, max_new_tokens=limits, sampling=[Sampling()] * len(prompts))


def test_the_prefix_is_where_the_roots_stand() -> None:
    """Prompts of several lengths, and rows that leave at different times."""
    prompts = [list(prompt) for prompt in PROMPTS]
    verifier, rows = verifier_of(prompts, [3, 14, 7, 11][: len(prompts)]), []
    for step in decode(verifier, toy_drafts()["perturbed"], POLICY):
        if step.tree is not None:  # the round's tokens are counted before the next one
            assert verifier.prefix == step.position.tolist()
            rows.append(len(step.rows))
    assert len(set(rows)) > 1


@torch.inference_mode()
def test_rows_that_join_bring_their_prefix_and_a_fork_counts_alone() -> None:
    first, second = (verifier_of([list(prompt)], [9]) for prompt in (PROMPTS[0], PROMPTS[1]))
    for verifier in (first, second):
        verifier.unfinished(verifier.prefill()[0])
    lengths = [len(PROMPTS[0]), len(PROMPTS[1])]
    first.join(second)
    assert first.prefix == lengths
    fork = first.fork(first.session)
    fork.prefix[0] += 5
    assert first.prefix == lengths
