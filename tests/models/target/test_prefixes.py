"""Prompts that begin like others: the same bits, for less."""

from itertools import takewhile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from c2t.batching import BatchDecoder
from c2t.kernels.native import kernels
from c2t.models.loading.load import load_pair
from c2t.models.target.prefixes import Beginning, Prefixes
from c2t.models.target.target import Target, TargetSession
from c2t.policies import Eagle2
from c2t.sampling import Sampling
from c2t.verification.target_verifier import pad
from tests.models.target.test_packed_model import SIZES, VOCABULARY, WHOLE, needs_bytes
from tests.toys import language_model

needs_compiler = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
TEXT = torch.randint(0, VOCABULARY, (60,), generator=torch.Generator().manual_seed(5)).tolist()
OTHER = [token ^ 1 for token in TEXT]


@pytest.fixture(params=[torch.float32, torch.bfloat16, pytest.param(torch.int8, marks=needs_bytes)])
@torch.inference_mode(False)
def target(request: pytest.FixtureRequest) -> Target:
    rounded = request.param == torch.int8
    model = language_model(LlamaConfig(**(WHOLE if rounded else SIZES))).to(torch.bfloat16)
    return Target(model.to(torch.float32 if rounded else request.param), rounded)


@torch.inference_mode()
def read(target: Target, *prompts: list[int]) -> tuple[TargetSession, list[torch.Tensor]]:
    """The session, and each prompt's logits, features, keys and values."""
    session, found = target.session(), []
    verified = session.prefill(*pad(prompts, torch.device("cpu")))
    for row, prompt in enumerate(prompts):
        found += [verified.logits.values[verified.logits.packed_index[row, 0]], verified.features[row, : len(prompt)]]
        found += [session.cache.prefix(layer, row) for layer in range(len(session.cache.buffers))]
    return session, found


def computed(target: Target, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each forward from now on computes."""
    counts, forward = [], TargetSession.forward

    def counting(self: TargetSession, tokens, positions, sees, rows, *rest):
        counts.append(len(rows.row))
        return forward(self, tokens, positions, sees, rows, *rest)

    monkeypatch.setattr(TargetSession, "forward", counting)
    return counts


@needs_compiler
def test_what_is_known_is_not_computed_and_all_bits_are_the_same(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer prompt, a shorter one, the same one, one that knows nothing, and one that leaves the known text."""
    prompts = [TEXT, TEXT[:40], TEXT[:50], OTHER[:20], [*TEXT[:30], *OTHER[30:45]]]
    _, alone = zip(*(read(target, prompt) for prompt in prompts), strict=True)
    target.prefixes = Prefixes()
    read(target, TEXT[:50])
    counts = computed(target, monkeypatch)
    _, together = read(target, *prompts)
    assert counts == [10 + 1 + 1 + 20 + 15]
    assert target.prefixes.reused == 50 + 39 + 49 + 30
    for mine, theirs in zip(together, [part for parts in alone for part in parts], strict=True):
        assert mine.equal(theirs)


@needs_compiler
def test_rounds_behind_a_known_beginning_go_on_as_ever(target: Target) -> None:
    """Also where rows have begun with different lengths, and one with none."""
    step = torch.tensor([[3], [7]])

    def next_logits() -> torch.Tensor:
        session, _ = read(target, TEXT, OTHER[:20])
        with torch.inference_mode():
            return torch.cat([session.peek(step[:, 0]), session.peek(step[:, 0])])

    before = next_logits()
    target.prefixes = Prefixes()
    read(target, TEXT[:33])
    assert next_logits().equal(before)
    assert target.prefixes.reused == 33


@needs_compiler
def test_other_weights_and_other_features_forget_what_was_read(target: Target) -> None:
    target.prefixes = Prefixes()
    read(target, TEXT)
    with torch.inference_mode():
        target.model.model.norm.weight.mul_(2)
    _, found = read(target, TEXT)
    assert target.prefixes.reused == 0
    target.tap((1,))
    read(target, TEXT)
    assert target.prefixes.reused == 0
    target.tap(())
    target.prefixes = None
    _, anew = read(target, TEXT)
    assert all(map(torch.equal, found, anew))


def test_where_bits_depend_on_what_is_beside_nothing_is_kept() -> None:
    with torch.inference_mode(False):
        whole = Target(language_model(LlamaConfig(**SIZES)).to(torch.float64))
    whole.prefixes = Prefixes()
    read(whole, TEXT)
    assert whole.packed is None
    assert whole.prefixes.size == 0


def beginning(tokens: int) -> Beginning:
    return Beginning([torch.zeros(2, 1, tokens, 1)], torch.zeros(tokens, 2))  # 16 bytes a token


def test_memory_is_bounded_and_what_was_not_used_for_longest_goes() -> None:
    kept = Prefixes(16 * 30)
    for prompt in ([1] * 10, [2] * 10, [3] * 10):
        kept.keep(prompt, beginning(10))
    assert kept.longest([1] * 12) is not None
    kept.keep([4] * 15, beginning(15))
    assert [kept.longest([token] * 12) is not None for token in (1, 2, 3, 4)] == [True, False, False, True]
    assert kept.size == 16 * 25
    kept.keep([5] * 31, beginning(31))  # more than there is room for
    assert kept.size == 16 * 25


def test_no_memory_keeps_none() -> None:
    kept = Prefixes(0)
    kept.keep([1] * 10, beginning(10))
    assert (kept.size, kept.longest([1] * 12)) == (0, None)


def test_a_conversation_is_kept_once() -> None:
    kept = Prefixes()
    for turn in range(1, 5):
        kept.keep([*range(10 * turn)], beginning(10 * turn))
    assert kept.size == 16 * 40
    kept.keep([*range(15)], beginning(15))
    assert kept.size == 16 * 40, "it is the beginning of what is kept"
    assert len(kept.longest([*range(10)]).features) == 9, "the last token is computed"
    assert kept.longest([9]) is None
    assert kept.longest([7, 8]) is None


@needs_compiler
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_requests_that_share_a_beginning_have_the_texts_that_they_have_alone(temperature: float) -> None:
    """Turns of one conversation, and a request beside it, as they come."""
    pair = load_pair("tiny")
    said = pair.tokenizer("def add(a, b):\n    return a + b\n\n").input_ids
    turns = [said, [*said, *said[:7]], [*said, *said[:7], *said], pair.tokenizer("The sum of").input_ids]

    def texts() -> list[list[int]]:
        decoder = BatchDecoder(pair, Eagle2(K=3, levels=3, N=8), max_rows=2)
        requests = [decoder.submit(turn, 12, Sampling(temperature), number) for number, turn in enumerate(turns)]
        while decoder.running or decoder.waiting:
            decoder.step()
        return [request.tokens for request in requests]

    before = texts()
    pair.target.prefixes = Prefixes()
    assert texts() == before
    assert pair.target.prefixes.reused > len(turns[1]), "the third turn begins as the second, which ran with the first"


def shared(one: list[int], other: list[int]) -> int:
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))])


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=30))
def test_what_is_found_is_the_longest_that_any_prompt_has(prompts: list[list[int]]) -> None:
    kept = Prefixes()
    for number, prompt in enumerate(prompts):
        wanted = max((shared(each, prompt[:-1]) for each in prompts[:number]), default=0)
        found = kept.longest(prompt)
        assert (len(found.features) if found else 0) == wanted
        kept.keep(prompt, beginning(len(prompt)))
    longest = {tuple(p) for p in prompts if not any(q[: len(p)] == p and len(q) > len(p) for q in prompts)}
    assert kept.size == 16 * sum(map(len, longest)), "each that no other one begins with"
