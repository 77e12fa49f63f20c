"""Long texts are read some tokens at a time: the same states, and masks that grow with a text, not with its square."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from c2t.caches import ragged
from c2t.kernels.native import kernels
from c2t.models.drafts.head_draft import EagleDraft, EagleSession
from c2t.models.drafts.language_model import DraftLM
from c2t.models.drafts.session import DraftSession
from c2t.models.target.target import Target, Verified
from c2t.policies import Eagle2
from c2t.replay.lockstep import read_continuations
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.target_verifier import generate, pad
from tests.models.target.test_packed_model import HEADS, head_of, target_of
from tests.rounding import assert_same_network
from tests.toys import FAMILIES, VOCABULARY, deep_pairs, emitted, language_model, root_of

LENGTHS = (23, 4, 17)  # of which the second ends in the first stretch
TEXTS = [[(11 * n + 5 * row + 2) % VOCABULARY for n in range(length)] for row, length in enumerate(LENGTHS)]
ENDS = torch.tensor(LENGTHS)
needs_compiler = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")


class LargestMask(TorchDispatchMode):
    """Notes how many elements the largest Boolean tensor has that is made in it."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.dtype == torch.bool:
            self.most = max(self.most, found.numel())
        return found


def ways(monkeypatch: pytest.MonkeyPatch, read: Callable) -> list:
    """What is read at once, and what is read in stretches of five tokens."""
    whole = read()
    monkeypatch.setattr(ragged, "CHUNK", 5)
    return [whole, read()]


@torch.inference_mode()
def read(target: Target) -> tuple[Verified, Verified]:
    """The texts and a tree behind each."""
    session = target.session()
    tree = Tree.root(torch.tensor([5, 6, 7]))
    return session.prefill(*pad(TEXTS, torch.device("cpu"))), session.verify(tree)


@pytest.mark.parametrize("family", [*FAMILIES, "with tapped layers"])
def test_every_family_reads_the_same_in_stretches(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(language_model(FAMILIES[family])) if family in FAMILIES else deep_pairs()["eagle3"][0]
    (whole, tree), (some, other_tree) = ways(monkeypatch, lambda: read(target))
    assert_same_network(some.logits.padded(), whole.logits.padded())
    assert_same_network(other_tree.logits.padded(), tree.logits.padded())
    for row, length in enumerate(LENGTHS):
        assert_same_network(some.features[row, :length], whole.features[row, :length])


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_packed_form_reads_the_same_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(dtype)
    assert target.packed is not None
    (whole, tree), (some, other_tree) = ways(monkeypatch, lambda: read(target))
    assert some.logits.values.equal(whole.logits.values)
    assert other_tree.logits.values.equal(tree.logits.values)
    for row, length in enumerate(LENGTHS):
        assert some.features[row, :length].equal(whole.features[row, :length])


def test_texts_of_others_are_judged_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(language_model(FAMILIES["llama"]))
    prompts, answers = [text[:3] for text in TEXTS], [[*text[3:], *range(9)] for text in TEXTS]
    given = {"max_new_tokens": 30, "beyond": 2, "sampling": Sampling()}
    whole, some = ways(monkeypatch, lambda: read_continuations(target, prompts, answers, **given))
    for one, other in zip(whole, some, strict=True):
        assert other.tokens.equal(one.tokens)
        assert_same_network(other.features, one.features)
        assert_same_network(other.judged, one.judged)


def observe(draft: EagleDraft | DraftLM, width: int, dtype: torch.dtype = torch.float64) -> DraftSession:
    """A session that has read the texts, the last token of which is the root."""
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(3, max(LENGTHS) - 1, width, generator=draw, dtype=torch.float64).to(dtype)
    session = draft.session()
    session.observe(pad(TEXTS, torch.device("cpu"))[0], features, ENDS - 1)
    return session


@pytest.mark.parametrize("name", ["eagle", "eagle3", "mtp", "medusa", "lm"])
@torch.inference_mode()
def test_every_draft_reads_the_same_in_stretches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, draft = deep_pairs()[name]
    width = 32 * (3 if name == "eagle3" else 1)
    whole, some = ways(monkeypatch, lambda: observe(draft, width))
    grow, roots = Eagle2(K=2, levels=3, N=None), root_of(*(text[-1] for text in TEXTS))
    tree, other_tree = grow(whole, roots), grow(some, roots)
    assert other_tree.token.equal(tree.token)
    assert_same_network(other_tree.log_joint, tree.log_joint)
    assert some.passes.tolist() == whole.passes.tolist()
    assert_same_network(some.hidden, whole.hidden)


@needs_compiler
@pytest.mark.parametrize("kind", HEADS)
@torch.inference_mode()
def test_packed_heads_read_the_same_bits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = head_of(kind)
    draft = EagleDraft(head, target_of(torch.float32).lm_head)
    width = head.fc.in_features if "3" in kind else 64
    whole, some = ways(monkeypatch, lambda: observe(draft, width, torch.float32))
    assert some.packed is not None
    assert some.hidden.equal(whole.hidden)
    for layer, row in product(range(len(some.cache.buffers)), range(len(LENGTHS))):
        assert some.cache.prefix(layer, row).equal(whole.cache.prefix(layer, row))
    monkeypatch.setattr(EagleSession, "_last", DraftSession._last)  # by the outputs of all tokens
    assert observe(draft, width, torch.float32).hidden.equal(whole.hidden)


@needs_compiler
@torch.inference_mode()
def test_padding_of_a_row_that_has_left_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a stretch in which no row has a token: the longest one ended with its first."""
    monkeypatch.setattr(ragged, "CHUNK", 5)
    target = target_of(torch.float32)
    draft, short = EagleDraft(head_of("eagle"), target.lm_head), [1, 2, 3]

    def texts(prompts: list[list[int]], new: list[int]) -> list[list[int]]:
        settings = {"max_new_tokens": new, "sampling": Sampling()}
        return emitted(list(generate(target, draft, Eagle2(K=2, levels=2, N=4), prompts, **settings)), len(prompts))

    assert texts([TEXTS[0], short], [1, 6])[1] == texts([short], [6])[0]


READERS: dict[str, Callable[[], Callable[[], object]]] = {
    "torch": lambda: partial(read, Target(language_model(FAMILIES["mistral"]))),
    "packed": lambda: partial(read, target_of(torch.float32)),
    "draft lm": lambda: partial(observe, deep_pairs()["lm"][1], 32),
    "eagle": lambda: partial(observe, deep_pairs()["eagle"][1], 32),
    "packed eagle": lambda: partial(
        observe, EagleDraft(head_of("eagle"), target_of(torch.float32).lm_head), 64, torch.float32
    ),
}


@pytest.mark.parametrize("reader", READERS)
@torch.inference_mode()
def test_masks_grow_with_the_text(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    again = READERS[reader]()
    again()  # what is packed once is no mask
    monkeypatch.setattr(ragged, "CHUNK", 2)
    with LargestMask() as seen:
        again()
    rows, longest, shared = len(TEXTS), max(LENGTHS), 2  # query heads that share keys, for which a mask is repeated
    assert 0 < seen.most <= shared * rows * 2 * longest < rows * longest**2
