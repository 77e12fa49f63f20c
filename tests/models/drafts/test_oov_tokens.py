"""Tokens of a text that its draft lacks: which they are, and their logits."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from c2t import SpeculativeDecoder
from c2t.batching import BatchDecoder
from c2t.caches.ragged import Ragged
from c2t.decoding import decode, open_session
from c2t.kernels.native import kernels
from c2t.kernels.oov_tokens import add_oov_tokens
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.drafts.medusa import MedusaDraft, MedusaHead
from c2t.models.drafts.oov_tokens import MOST, OutOfVocabulary
from c2t.models.loading.load import Pair, load_pair, with_ngrams
from c2t.models.wrappers.reweighted import rescored
from c2t.policies.budget import Budget
from c2t.policies.eagle2 import Eagle2
from c2t.protocols import DraftVocabulary, NextTokenDistributions
from c2t.sampling import Sampling
from c2t.verification.target_verifier import TargetVerifier
from tests.rounding import assert_same_sums, growth

KNOWN = frozenset(range(0, 100, 2))
CPU = torch.device("cpu")
TEXTS = [[1, 2, 3, 3, 7, 2, 9], [2, 4, 6], [5, 5, 1, 2, 11]]
OWN = [[1, 3, 7, 9], [-1] * 4, [5, 1, 11, -1]]


def padded(texts: list[list[int]]) -> Tensor:
    longest = max(map(len, texts))
    return torch.tensor([text + [99] * (longest - len(text)) for text in texts])  # padding is not theirs


def observed(texts: list[list[int]]) -> OutOfVocabulary:
    own = OutOfVocabulary(KNOWN, CPU)
    own.observe(padded(texts), torch.tensor([len(text) - 1 for text in texts]))
    return own


def test_the_first_ones_stand_in_the_order_of_the_text_once() -> None:
    assert observed(TEXTS).ids.tolist() == OWN
    long = list(range(1, 4 * MOST, 2))
    assert observed([long]).ids.tolist() == [long[:MOST]]


def test_text_that_comes_in_pieces_is_the_same_text() -> None:
    """Each piece begins with the last token of the one before."""
    own = observed([text[:2] for text in TEXTS])
    for begin, end in ((1, 4), (3, 7)):
        pieces = [text[begin:end] or text[-1:] for text in TEXTS]
        own.observe(padded(pieces), torch.tensor([len(piece) - 1 for piece in pieces]))
    assert own.ids.tolist() == OWN


def test_rows_come_and_go() -> None:
    own = observed(TEXTS)
    own.select(torch.tensor([2, 1]))
    assert own.ids.tolist() == [[5, 1, 11], [-1, -1, -1]]
    own.join(observed(TEXTS[:1]))
    assert own.ids.tolist() == [[5, 1, 11, -1], [-1] * 4, [1, 3, 7, 9]]
    own.select(torch.tensor([], dtype=torch.long))
    assert own.ids.shape == (0, 0)


def test_a_fork_has_those_of_its_part_of_the_text() -> None:
    text = TEXTS[0]
    fork = observed([text]).fork(torch.arange(len(text)))
    for less, ids in enumerate(fork.ids.tolist()):
        wanted = [token for token in dict.fromkeys(text[: len(text) - less]) if token not in KNOWN]
        assert [token for token in ids if token >= 0] == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("hidden", [32, 33])
def test_their_logits_are_those_of_the_lm_head(dtype: torch.dtype, hidden: int) -> None:
    lm_head, states = torch.randn(50, hidden).to(dtype), torch.randn(5, hidden)
    logits, ids, text = torch.randn(5, 7), torch.tensor([[3, 49, -1], [0, -1, -1]]), torch.tensor([0, 0, 1, 1, 0])
    found = add_oov_tokens(logits, states, text, ids, lm_head)
    assert found[:, :7].equal(logits)
    there = ids[text] >= 0
    assert found[:, 7:][~there].eq(float("-inf")).all()
    exact = (states.double() @ lm_head.double().T).gather(1, ids[text].clamp(min=0))
    largest = (states.double().abs() @ lm_head.double().abs().T).max()
    assert (found[:, 7:].double() - exact)[there].abs().max() <= growth(hidden) * largest


@pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
def test_in_c_a_state_has_the_same_logits_among_any_others() -> None:
    lm_head, states = torch.randn(50, 64), torch.randn(6, 64)
    ids, text = torch.tensor([[3, 49], [7, -1]]), torch.tensor([0, 1, 0, 1, 1, 0])
    together = add_oov_tokens(torch.zeros(6, 3), states, text, ids, lm_head)
    for one in range(6):
        alone = add_oov_tokens(torch.zeros(1, 3), states[one : one + 1], text[one : one + 1], ids, lm_head)
        assert alone[0].equal(together[one])


def test_distributions_name_them() -> None:
    """Three slots of two texts, whose own tokens are 7 and 1, and 3."""
    rows = Ragged.of(torch.tensor([[True, True], [False, True]]))
    vocabulary = DraftVocabulary(torch.tensor([2, 4, 6]), 9, torch.tensor([[7, 1], [3, -1]]))
    none = float("-inf")
    logits = torch.tensor([[0.0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 2, 0, 3, none]])
    found = NextTokenDistributions(logits, None, vocabulary, rows)
    assert rows.take(found.top(3)[0]).tolist() == [[1, 7, 6], [2, 4, 6], [3, 4, 2]]
    wanted = torch.full((3, 9), none)
    for row, tokens in enumerate(([2, 4, 6, 7, 1], [2, 4, 6, 7, 1], [2, 4, 6, 3])):
        wanted[row, tokens] = logits[row, : len(tokens)]
    assert found.logits.equal(rows.back(wanted))
    assert_same_sums(found.log_probs.exp().sum(-1), torch.ones(2, 2), 20)
    raised = rescored(found, 2, lambda tokens, scores: (scores + 1.0, torch.zeros(2, 2, 1)))
    changed = raised.logits - found.log_probs
    for slot, tokens in (((0, 0), [1, 7]), ((0, 1), [2, 4]), ((1, 1), [3, 4])):
        assert (changed[slot] > 0.5).nonzero()[:, 0].tolist() == sorted(tokens)


def test_distributions_of_all_depths_name_them() -> None:
    """A parallel draft's are (B, depths): two texts, whose own tokens are 7, and none."""
    vocabulary = DraftVocabulary(torch.tensor([2, 4, 6]), 9, torch.tensor([[7], [-1]]))
    logits = torch.tensor([[[0.0, 1, 2, 3], [3, 2, 1, 0]], [[1, 3, 0, float("-inf")]] * 2])
    found = NextTokenDistributions(logits, None, vocabulary)
    assert found.top(2)[0].tolist() == [[[7, 6], [2, 4]], [[4, 2]] * 2]
    assert found.logits.isfinite().sum(-1).tolist() == [[4, 4], [3, 3]]
    assert found.logits[0, :, 7].tolist() == [3, 0]
    raised = rescored(found, 1, lambda tokens, scores: (scores + 1.0, torch.zeros(2, 2, 1)))
    assert ((raised.logits - found.log_probs) > 0.5).nonzero()[:, 2].tolist() == [7, 2, 4, 4]


def narrow_draft(tiny: Pair, parallel: bool) -> EagleDraft | MedusaDraft:
    """The pair's head, which drafts from each fourth token; parallel: the same at all depths."""
    head = tiny.draft.head
    if parallel:
        head = MedusaHead(head.config, num_heads=2)
        head.load_state_dict(tiny.draft.head.state_dict(), strict=False)
        head.embed_tokens = tiny.draft.head.embed_tokens
    head.requires_grad_(False).tokens = torch.arange(0, tiny.target.config.vocab_size, 4)
    return (MedusaDraft if parallel else EagleDraft)(head, tiny.target.lm_head)


def test_a_row_may_end_before_anything_is_observed() -> None:
    own = OutOfVocabulary(KNOWN, CPU)
    own.select(torch.tensor([1, 2]))
    own.observe(padded(TEXTS[1:]), torch.tensor([len(text) - 1 for text in TEXTS[1:]]))
    assert own.ids.tolist() == [[-1] * 3, [5, 1, 11]]


@pytest.mark.parametrize("ngrams", [False, True])
@pytest.mark.parametrize("policy", [Eagle2(K=4, levels=3, N=9), Budget(Eagle2(K=4, levels=3, N=9), nodes=14)])
def test_texts_that_end_with_their_first_token_leave_the_others_alone(policy, ngrams: bool) -> None:
    tiny = load_pair("tiny", dtype=torch.float32)
    pair = replace(tiny, draft=narrow_draft(tiny, parallel=False))
    pair = with_ngrams(pair) if ngrams else pair
    prompts = [tiny.tokenizer(text).input_ids for text in ("def add(a, b):\n", "Once upon a time there", "import")]
    alone = [SpeculativeDecoder(pair, policy).generate([ids], 12).sequences[0] for ids in prompts]
    batch = BatchDecoder(pair, policy, max_rows=4)
    requests = [batch.submit(ids, new) for ids, new in zip(prompts, (1, 12, 12), strict=True)]
    while batch.step():
        pass
    assert [request.tokens for request in requests] == [alone[0][:1], *alone[1:]]
    verifier = TargetVerifier(
        pair.target, policy, prompts, max_new_tokens=[1, 12, 12], sampling=Sampling(0.0), eos=frozenset()
    )
    found: list[list[int]] = [[], [], []]
    for step in decode(verifier, pair.draft, policy):
        for row, tokens in step.by_row():
            found[row] += tokens
    assert [tokens[:count] for tokens, count in zip(found, (1, 12, 12), strict=True)] == [alone[0][:1], *alone[1:]]


@pytest.mark.parametrize("parallel", [False, True])
@torch.inference_mode()
def test_a_text_has_the_trees_that_it_has_alone(parallel: bool) -> None:
    """Whatever is decoded beside it, and whenever that came."""
    tiny = load_pair("tiny", dtype=torch.float32)
    draft, policy = narrow_draft(tiny, parallel), Eagle2(K=4, levels=3, N=9)
    prompts = [tiny.tokenizer(text).input_ids for text in ("def add(a, b):\n", "Once upon a time there was", "import")]

    def begun(some: list[list[int]]):
        verifier = TargetVerifier(tiny.target, policy, some, max_new_tokens=64, sampling=Sampling(0.0))
        session = open_session(draft, policy, len(some), verifier)
        session.observe(*verifier.prefill()[1])
        return session, verifier

    together, verifiers = begun(prompts[:2])
    late, late_verifier = begun(prompts[2:])
    together.join(late)
    verifiers.join(late_verifier)
    tree = policy(together, verifiers.root())
    named = 0
    for row, prompt in enumerate(prompts):
        session, verifier = begun([prompt])
        alone = policy(session, verifier.root())
        assert tree.token[row, tree.alive[row]].equal(alone.token[0, alone.alive[0]])
        named += int((alone.token[0, 1:] % 4 != 0).sum())
    assert named > 0, "no tree has a token of its text's own"
