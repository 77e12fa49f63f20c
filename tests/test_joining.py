"""Rows that join a running batch go on as they would alone: their text, and every tree that the draft makes of it."""

import pytest
import torch

from c2t.decoding import Committed, DraftModel, Step, open_session, speculate
from c2t.errors import InputError
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.models.wrappers.reweighted import ReweightedDraft
from c2t.policies import Eagle2, MCSDPlus, Plain, SpecInfer
from c2t.protocols import Policy
from c2t.sampling import Sampling
from c2t.verification.target_verifier import TargetModel, TargetVerifier
from tests.marks import slow_except
from tests.toys import PROMPTS, deep_pairs, toy_target

NEW = 8
EAGLE2 = Eagle2(K=3, levels=3, N=8)
GREEDY, WARM = Sampling(), Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=3)


class Run:
    """A batch that is stepped by hand. rounds: of each prompt, by its sequence, the tree and the tokens of each."""

    def __init__(self, target: TargetModel, draft: DraftModel | None, policy: Policy, sequences: list[int], samplings):
        self.policy = policy
        self.verifier = TargetVerifier(
            target,
            policy,
            [PROMPTS[sequence] for sequence in sequences],
            max_new_tokens=[NEW + sequence for sequence in sequences],
            sampling=samplings,
            sequences=sequences,
        )
        self.verifier.rows = torch.tensor(sequences)
        self.rounds: dict[int, list] = {sequence: [] for sequence in sequences}
        step, committed = self.verifier.prefill()
        self.draft = open_session(draft, policy, 8, self.verifier)
        self.take(step, committed)

    def take(self, step: Step, committed: Committed) -> None:
        for row, (sequence, tokens) in enumerate(step.by_row()):
            tree, size = step.tree, 0 if step.tree is None else int(step.tree.sizes[row])
            shape = tree and (tree.token[row, :size].tolist(), tree.parent[row, :size].tolist())
            self.rounds[sequence].append((tokens, shape, int(step.draft_passes[row])))
        going = self.verifier.unfinished(step)
        self.going = bool(going)
        if not self.going:
            return
        rows = torch.tensor(going)
        self.verifier.select(rows)
        self.draft.select(rows)
        self.draft.observe(*committed.select(rows))

    @torch.inference_mode()
    def play(self, rounds: int = 99) -> "Run":
        while self.going and rounds:
            self.take(*speculate(self.draft, self.policy, self.verifier))
            rounds -= 1
        return self

    @torch.inference_mode()
    def join(self, other: "Run") -> None:
        self.verifier.join(other.verifier)
        self.draft.join(other.draft)
        self.rounds.update(other.rounds)


@torch.inference_mode()  # as every loop decodes: some drafts keep tensors from it
def assert_join_is_seamless(target, draft, policy, samplings) -> None:
    """Two prompts play two rounds, two others play one, of other lengths; then all four go on together, and one that
    has begun later joins them."""
    alone = {
        sequence: Run(target, draft, policy, [sequence], [samplings[sequence]]).play().rounds[sequence]
        for sequence in range(4)
    }
    run = Run(target, draft, policy, [1, 0], [samplings[1], samplings[0]]).play(2)
    assert run.going
    run.join(Run(target, draft, policy, [2], [samplings[2]]).play(1))
    run.play(1)
    run.join(Run(target, draft, policy, [3], [samplings[3]]))
    run.play()
    assert run.rounds == alone


def drafts() -> dict[str, tuple]:
    pairs = deep_pairs()
    target, eagle = pairs["eagle"]
    medusa, lm = pairs["medusa"][1], pairs["lm"][1]

    def fit(path, tokens, log_probs):  # any dependence on the path
        return log_probs - 0.1 * ((tokens + path.token[..., None] + path.before[..., None]) % 7), 0 * log_probs[..., :1]

    wrapped = {
        "ngrams": (target, NgramDraft(eagle, 0.5)),
        "lm and ngrams": (target, NgramDraft(lm, 2.0)),
        "conditioned": (target, NgramDraft(ReweightedDraft(medusa, fit), 2.0)),
    }
    return {**pairs, **wrapped}


@pytest.mark.parametrize("kind", slow_except(drafts(), "eagle", "lm and ngrams"))
def test_every_draft_goes_on_as_alone(kind: str) -> None:
    assert_join_is_seamless(*drafts()[kind], EAGLE2, [GREEDY] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [EAGLE2, SpecInfer((3, 2, 1)), Plain()], ids=lambda policy: type(policy).__name__)
def test_samplings_may_differ(policy: Policy) -> None:
    target, draft = deep_pairs()["lm"]
    assert_join_is_seamless(target, draft, policy, [WARM, GREEDY, WARM, Sampling(1.0)])


def test_forks_refuse_to_join() -> None:
    runs = [Run(toy_target(), None, MCSDPlus(W=2, D=1), [number], GREEDY) for number in range(2)]
    with pytest.raises(InputError, match="MCSDPlus decodes fixed batches only"):
        runs[0].join(runs[1])
