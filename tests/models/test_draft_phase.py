"""A draft phase in one call grows the trees that a policy grows level by level, to the bit."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from c2t.classifier import CONDITIONAL, ClassifierConfig, TreeClassifier
from c2t.decoding import Committed, open_session
from c2t.errors import InputError
from c2t.kernels import decoder_layers
from c2t.kernels.decoder_layers import Kind
from c2t.kernels.native import kernels
from c2t.models.drafts.head_draft import EagleDraft, EagleSession
from c2t.models.loading.load import Pair, load_pair, with_ngrams
from c2t.policies.budget import Budget
from c2t.policies.c2t import C2T
from c2t.policies.chain import Chain
from c2t.policies.eagle2 import Eagle2
from c2t.policies.round_costs import Curve, Overhead, Profile, RoundCosts
from c2t.policies.threshold import JointThreshold
from c2t.protocols import NextTokenDistributions, RecordingDraft, Root
from c2t.sampling import Sampling
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import COLUMNS, Tree
from c2t.verification.target_verifier import TargetVerifier
from tests.marks import slow_except
from tests.rounding import assert_equal
from tests.tiny_heads import saved

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")

needs_bytes = pytest.mark.skipif(
    Kind.INT8 not in decoder_layers.works(), reason="this processor has no products of bytes"
)
TEXTS = ("The quick brown fox jumps. The quick brown fox", "def add(a, b):\n    return a + b\n\ndef add(a", "Once")
# A round of plain decoding takes 1, and a token more 0.05: some levels pay, and some nodes.
VERIFY = Curve((1, 2, 200), (1.0, 1.05, 12.0))
YIELDS = Profile((1.0,) * 3, (0.0, 4.0), ((0.0, 0.6), (0.0, 0.9), (0.0, 1.0)))


def costs(per_level: float) -> RoundCosts:
    return RoundCosts(
        VERIFY, Curve((1, 30), (per_level, 2 * per_level)), Overhead(per_round=0.1, per_level=0.01), YIELDS
    )


def conditional() -> TreeClassifier:
    """Of every column of a node that a classifier can read."""
    names = ("log_prob", "log_max_prob", "rank", "entropy", "depth", "log_joint", "joint_prob")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = TreeClassifier(ClassifierConfig(features=names, hidden=5, label=CONDITIONAL, M=50))
    return made.requires_grad_(False)


PAPERS = TreeClassifier.from_pretrained("tiny")
POLICIES = {
    "few": Eagle2(K=4, levels=3, N=8),
    "many": Eagle2(K=10, levels=6, N=60),
    "one level": Eagle2(K=3, levels=1, N=4),
    "everything": Eagle2(K=2, levels=2, N=100),
    "threshold": JointThreshold(threshold=0.02),
    "narrow": JointThreshold(threshold=0.001, K=6, W=3, levels=5),
    "limits": JointThreshold(threshold=0.001, W=None, max_width=9, max_nodes=30),
    "nothing": JointThreshold(threshold=1.0),
    "chain": Chain(length=4),
    "the whole tree": Eagle2(K=3, levels=3, N=None),
    "with entropies": Eagle2(K=3, levels=3, N=9, M=20),
    "with all entropies": Eagle2(K=3, levels=2, N=6, M=None),
    "with entropies of most": Eagle2(K=3, levels=2, N=6, M=2050),  # between few tokens, and those with the texts' own
    "classifier": C2T(PAPERS),
    "classifier that trusts": C2T(PAPERS, beta=0.05, K=6, W=6, levels=4),
    "classifier, limits": C2T(PAPERS, beta=0.05, W=None, max_width=9, max_nodes=30),
    "classifier, chain": C2T(PAPERS, beta=0.2, K=1, W=1),
    "classifier of all entropies": C2T(PAPERS, beta=0.1, K=4, W=4, levels=3, M=None),
    "conditional, limits": C2T(conditional(), beta=0.05, K=6, W=None, max_width=5, max_nodes=12, levels=4),
    "conditional": C2T(conditional(), beta=0.2, K=6, W=5, levels=4),
    "budget of a classifier": Budget(C2T(PAPERS, beta=0.05, K=6, W=6, levels=3), costs=costs(0.02)),
    "budget of a conditional one": Budget(C2T(conditional(), beta=0.05, K=5, W=5, levels=3), costs=costs(0.02)),
    "budget of a whole tree": Budget(Eagle2(K=4, levels=3, N=None), costs=costs(0.02)),
    "budget": Budget(JointThreshold(threshold=0.01, K=6, W=6, levels=3), costs=costs(0.02)),
    "budget that seldom pays": Budget(JointThreshold(threshold=0.01, K=6, W=6, levels=3), costs=costs(0.05)),
    "budget, reranked": Budget(Eagle2(K=5, levels=3, N=9), costs=costs(0.02)),
    "budget of nodes and costs": Budget(Eagle2(K=5, levels=3, N=40), nodes=14, costs=costs(0.01)),
}


def inner(draft: EagleSession | WrappedSession) -> EagleSession:
    return draft if isinstance(draft, EagleSession) else inner(draft.draft)


class LevelByLevel(NamedTuple):
    """Draft that can only expand."""

    draft: object

    def expand(self, tree: Tree, slots: Tensor) -> NextTokenDistributions:
        return self.draft.expand(tree, slots)


KINDS = ["head", "n-grams", "few tokens", "few tokens, n-grams", pytest.param("bytes", marks=needs_bytes)]
EAGLE3 = ["as published", "other norms, n-grams", "of the target's rows, n-grams", "window of 1", "window of 2"]
EAGLE3 += [pytest.param("bytes", marks=needs_bytes)]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> Pair:
    tiny = load_pair("tiny", dtype=torch.float32)
    if "few tokens" in request.param:  # so that texts have tokens of their own
        tiny.draft.head.tokens = torch.arange(0, tiny.target.config.vocab_size, 4)
        tiny = replace(tiny, draft=EagleDraft(tiny.draft.head, tiny.target.lm_head))
    if request.param == "bytes":
        tiny = replace(tiny, draft=EagleDraft(tiny.draft.head, tiny.target.lm_head, rounded=True))
        packed = tiny.draft.packed.parts.reader.matrix, tiny.draft.lm_head.packed()
        assert {matrix.kind for matrix in packed} == {Kind.INT8}
    return with_ngrams(tiny) if "n-grams" in request.param else tiny


@pytest.fixture(scope="module", params=EAGLE3)
def eagle3(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = saved("eagle3", tmp_path_factory.mktemp("eagle3"))
    tiny = load_pair("tiny", draft=folder, dtype=torch.float32)
    head = tiny.draft.head
    if "other norms" in request.param:
        head.variant = replace(head.variant, norm_before_residual=True, norm_output=True)
    if "window" in request.param:  # shorter than the texts, and than trees are deep
        head.variant = replace(head.variant, windows=(int(request.param[-1]),))
    if "target's rows" in request.param:  # and texts have tokens of their own
        head.shares_lm_head = True
        head.take_rows(tiny.target.lm_head)
    tiny = replace(tiny, draft=EagleDraft(head, tiny.target.lm_head, rounded=request.param == "bytes"))
    kind = tiny.draft.packed.parts.reader.matrix.kind
    assert (kind == Kind.INT8) == (request.param == "bytes")
    return with_ngrams(tiny) if "n-grams" in request.param else tiny


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", slow_except(POLICIES, "few", "narrow", "classifier", "budget"))
@torch.inference_mode()
def test_trees_are_those_of_level_by_level(name: str, temperature: float, pair: Pair) -> None:
    """At a temperature with the noise of the target's draws."""
    check_text(name, temperature, pair)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", slow_except(["few", "narrow", "classifier that trusts", "budget"], "few", "budget"))
@torch.inference_mode()
def test_trees_of_eagle3_are_those_of_level_by_level(name: str, temperature: float, eagle3: Pair) -> None:
    """The head's first layer reads token and state side by side, and the LM head may read them normalised."""
    check_text(name, temperature, eagle3)


def check_text(name: str, temperature: float, pair: Pair) -> None:
    policy = POLICIES[name]
    prompts = [pair.tokenizer(text).input_ids for text in TEXTS]
    verifier = TargetVerifier(pair.target, policy, prompts, max_new_tokens=64, sampling=Sampling(temperature))
    _, committed = verifier.prefill()
    fused, by_level = (open_session(pair.draft, policy, len(prompts), verifier) for _ in range(2))
    drafted = 0
    for number in range(6):
        if number == 3:  # rows end, and others change their places
            going = torch.tensor([2, 0])
            committed = committed.select(going)
            for state in (fused, by_level, verifier):
                state.select(going)
        tree = check_round(policy, verifier, committed, fused, by_level)
        drafted += tree.size - 1
        committed = verifier.verify(tree).committed
    assert (drafted > 0) == (name != "nothing")


def check_round(policy, verifier: TargetVerifier, committed: Committed, fused, by_level) -> Tree:
    for draft in (fused, by_level):
        draft.observe(*committed)
    root = verifier.root()
    recorded = RecordingDraft(fused), RecordingDraft(LevelByLevel(by_level))
    found, expected = (policy(draft, root) for draft in recorded)
    widths = [[(slots >= 0).sum(1).tolist() for slots in draft.slots] for draft in recorded]
    assert widths[0] == widths[1]
    assert inner(fused)._phase is not None, "it was grown level by level"
    assert torch.equal(found.alive, expected.alive)
    for column in COLUMNS:
        assert_equal(getattr(found, column)[found.alive], getattr(expected, column)[found.alive])
    assert torch.equal(found.ancestors()[found.alive], expected.ancestors()[found.alive])
    assert torch.equal(found.capped, expected.capped)
    assert torch.equal(fused.passes, by_level.passes)
    return found


def observed(pair: Pair):
    """Return a session that has observed a prompt, and its root."""
    verifier, committed = prefilled(pair)
    draft = open_session(pair.draft, Chain(), 1, verifier)
    draft.observe(*committed)
    return draft, verifier.root()


def prefilled(pair: Pair) -> tuple[TargetVerifier, Committed]:
    ids = pair.tokenizer(TEXTS[0]).input_ids
    verifier = TargetVerifier(pair.target, Chain(), [ids], max_new_tokens=8, sampling=Sampling(0.0))
    return verifier, verifier.prefill()[1]


@pytest.mark.parametrize("name", ["one level", "few"])
@torch.inference_mode()
def test_forks_grow_the_trees_of_their_places(name: str, pair: Pair) -> None:
    draft, root = observed(pair)
    (text,), (features,), _ = prefilled(pair)[1]
    last = len(features) - torch.tensor([0, 3, 1])
    forks = [draft.fork(len(features) + 1 - last) for _ in range(2)]
    for fork in forks:
        fork.observe(text.unfold(0, 2, 1)[last - 1], features[last - 1, None], torch.ones_like(last))
    roots = Root(root.token.expand(3), None)
    found, expected = POLICIES[name](forks[0], roots), POLICIES[name](LevelByLevel(forks[1]), roots)
    assert inner(forks[0])._phase is not None
    for column in COLUMNS:
        assert_equal(getattr(found, column), getattr(expected, column))


@torch.inference_mode()
def test_the_classifier_is_the_one_of_now(pair: Pair) -> None:
    """Weights that were replaced are not those that the phase knows."""
    draft, root = observed(pair)
    classifier = conditional()
    policy = C2T(classifier, beta=0.3, K=4, W=4, levels=3)

    def size() -> int:
        return policy(draft.fork(torch.tensor([0])), root).size

    assert size() > 1
    classifier.output.bias.data.fill_(-50.0)
    assert size() == 1, "it trusts nothing now"
    classifier.output.bias.data.fill_(50.0)
    assert size() > 1, "weights that change in place are read where they are"
    classifier.output.bias.data = torch.full_like(classifier.output.bias, -50.0)
    assert size() == 1
    classifier.double()
    classifier.output.bias.data.fill_(50.0)
    assert size() > 1


@torch.inference_mode()
def test_a_text_has_the_lm_head_that_it_begins_with(pair: Pair) -> None:
    """As it has the layers: to look whether weights have changed takes longer than to use them."""
    draft, root = observed(pair)
    weight = inner(draft).draft.lm_head.linear.weight
    kept = weight.detach().clone()
    try:
        Chain()(draft, root)
        phase = inner(draft)._phase
        weight.data.mul_(2)
        grown = Chain()(draft, root)
        assert inner(draft)._phase is phase
        one_by_one, root = observed(pair)
        assert not Chain()(LevelByLevel(one_by_one), root).log_prob.equal(grown.log_prob)
        other, root = observed(pair)
        Chain()(other, root)
        assert inner(other)._phase.head.lm_head is not phase.head.lm_head
    finally:
        weight.data.copy_(kept)


@pytest.mark.parametrize(
    "policy",
    [
        C2T(TreeClassifier(ClassifierConfig(layers=3)), beta=0.1, K=3, W=3, levels=2),
        JointThreshold(K=15, W=None, max_width=10**6, levels=2),
    ],
    ids=["classifier of three layers", "no room for the candidates"],
)
@torch.inference_mode()
def test_what_is_no_phase_is_drafted_level_by_level(policy: C2T | JointThreshold, pair: Pair) -> None:
    draft, root = observed(pair)
    policy(draft, root)
    assert inner(draft)._phase is None


@torch.inference_mode()
def test_what_is_refused_level_by_level_is_refused(pair: Pair) -> None:
    draft, root = observed(pair)
    vocabulary = inner(draft).draft.lm_head.linear.out_features
    with pytest.raises(InputError, match="choose a smaller K"):
        Eagle2(K=vocabulary + 1, levels=1)(draft, root)
    inner(draft).hidden.fill_(float("nan"))
    with pytest.raises(InputError, match="NaN"):
        Chain()(draft, root)


def test_where_gradients_are_recorded_it_grows_level_by_level(pair: Pair) -> None:
    with torch.inference_mode():
        draft, root = observed(pair)
    Chain()(draft, root)
    assert inner(draft)._phase is None
