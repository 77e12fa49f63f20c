"""A draft with the text's n-grams: its distributions against counts made one by one, and what every draft promises."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from c2t.cuda_graphs.draft import StaticDraft
from c2t.decoding import cut
from c2t.errors import InputError
from c2t.kernels.ngrams import Prior
from c2t.models.drafts.session import DraftSession
from c2t.models.drafts.uniform import UniformDraft
from c2t.models.loading.load import Pair, with_ngrams
from c2t.models.wrappers.ngrams import ALONE, PARALLEL, READING, NgramDraft, NgramSession
from c2t.models.wrappers.pmi_bigrams import PmiBigrams
from c2t.models.wrappers.reweighted import ReweightedDraft
from c2t.policies import C2T, Eagle2, JointThreshold, Plain, SpecInfer
from c2t.protocols import Draft, DraftVocabulary, NextTokenDistributions
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.storage.checksum import checksum
from c2t.tree import Tree
from c2t.verification.target_verifier import generate, pad
from tests.every_policy import EVERY_POLICY
from tests.markov import MarkovDraft, MarkovTarget
from tests.marks import slow_except
from tests.models.drafts.test_block import DRAFT as BLOCK
from tests.replay.test_every_position import assert_same, visited
from tests.rounding import assert_same_network, assert_same_sums
from tests.test_law import DRAFT, PROMPT, ROWS, SAMPLINGS, TARGET, p_of_bonus, p_of_texts
from tests.toys import (
    PROMPTS,
    VOCABULARY,
    deep_pairs,
    emitted,
    path_of,
    root_of,
    run,
    toy_classifier,
    toy_drafts,
    toy_target,
    toy_tokenizer,
)

LOOKUP = NgramDraft(UniformDraft(VOCABULARY, torch.float64))
TEXTS = [[7, 1, 7, 2, 7, 1, 7, 1, 7], [2, 2, 2, 2], [7, 1, 9], [7, 1, 2, 7, 1, 9, 7, 1, 2]]


def reader(drafter: NgramDraft, texts: list[list[int]]) -> NgramSession:
    """A session that has observed the texts in two parts, the second of another length in every row."""
    session, embed = drafter.session(), toy_target().embed_tokens
    for parts in ([text[:2] for text in texts], [text[1:] for text in texts]):
        tokens, lengths = pad(parts, torch.device("cpu"))
        session.observe(tokens, embed(tokens)[:, :-1], lengths - 1)
    return session


def levels(session: NgramSession) -> Iterator[tuple[NextTokenDistributions, list[tuple[int, int, list[int]]]]]:
    """Three levels below TEXTS, of the tokens that these are made of: distributions, and (row, place, path) of each."""
    tree, slots = Tree.root(torch.tensor([text[-1] for text in TEXTS])), torch.zeros(len(TEXTS), 1, dtype=torch.long)
    for _ in range(3):
        rows = session.expand(tree, slots)
        places = [(row, place) for row in range(len(TEXTS)) for place in range(slots.shape[1])]
        yield rows, [(row, place, path_of(tree, row, int(slots[row, place]))) for row, place in places]
        children = torch.tensor([1, 2, 7]).expand(*slots.shape, 3)
        prob = torch.zeros(children.shape, dtype=rows.log_probs.dtype)
        nodes = tree.children(slots, children, prob, prob[..., 0])
        slots = tree.size + torch.arange(nodes.size).expand(len(TEXTS), -1)
        tree = tree.extend(nodes)


def mixed(log_prob: Tensor, text: list[int], path: list[int], prior: Prior) -> Tensor:
    """The definition, count by count."""
    whole, prob, left = text + path, log_prob.exp(), 1.0
    end = torch.full_like(prob, -1)  # of the last context that a token followed
    for n, weight in enumerate(prior.weights, prior.shortest):
        if n > len(whole):
            break
        ends = [i + n - 1 for i in range(len(text) - n) if text[i : i + n] == whole[-n:]]
        count = torch.zeros_like(prob)
        for place in ends:
            count[text[place + 1]] += 1
            end[text[place + 1]] = max(place, int(end[text[place + 1]]))
        prob, left = (count + weight * prob) / (len(ends) + weight), left * weight / (len(ends) + weight)
    raised, back, trust = prob.log() - math.log(left) - log_prob, len(text) - 1 - end, prior.trust
    rise = trust.factor * raised + trust.distance * back.log() + trust.bias
    return (log_prob + rise.where((end >= 0) & (log_prob > -math.inf), 0.0)).softmax(0)


@pytest.mark.parametrize("prior_weight", [0.5, 16.0, None])
@pytest.mark.parametrize("name", ["eagle", "same", "medusa"])
@torch.no_grad()
def test_distributions_are_mixed_with_counts(
    name: str, prior_weight: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = NgramDraft(toy_drafts().get(name) or deep_pairs()[name][1], prior_weight)
    prior = draft.prior
    session, drafted, changed = reader(draft, TEXTS), [], 0
    assert isinstance(session, Draft)
    expand = session.draft.expand
    monkeypatch.setattr(session.draft, "expand", lambda *level: drafted.append(expand(*level)) or drafted[-1])
    for rows, places in levels(session):
        assert rows.hidden.equal(drafted[-1].hidden)
        for row, place, path in places:
            alone = drafted[-1].log_probs[row, place]
            wanted = mixed(alone, TEXTS[row], path, prior)
            assert_same_network(rows.log_probs[row, place].exp(), wanted)
            changed += bool((alone.exp() - wanted).abs().max() > 1e-6)
    assert changed >= (6 if prior_weight else 1)  # what was learned believes a draft that is nearly certain


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@torch.no_grad()
def test_lookup_gives_what_followed_and_all_else_alike(dtype: torch.dtype) -> None:
    """In float32 it is C that counts."""
    session = reader(NgramDraft(UniformDraft(VOCABULARY, dtype), 2.0), TEXTS)
    even = torch.full((VOCABULARY,), -math.log(VOCABULARY))
    for rows, places in levels(session):
        assert rows.log_probs.dtype == dtype
        for row, place, path in places:
            wanted = mixed(even.to(dtype), TEXTS[row], path, ALONE.prior(2.0))
            assert_same_sums(rows.log_probs[row, place].exp().float(), wanted, 100)  # `even` is in float32
    assert session.passes.tolist() == [0] * len(TEXTS)
    assert rows.log_probs.exp().max() > 0.3  # it knows something


class Known(DraftSession):
    """A draft whose logits are a function of the depths that it is asked for."""

    def __init__(self, logits: Callable[[Tensor], Tensor], vocabulary: DraftVocabulary | None = None):
        self.logits, self.vocabulary = logits, vocabulary

    def observe(self, tokens, features, count) -> None: ...

    def _forward(self, *level): ...

    def _logits(self, hidden): ...

    def expand(self, tree: Tree, slots: Tensor) -> NextTokenDistributions:
        logits = self.logits(tree.depth.gather(1, slots.clamp(min=0)))
        return NextTokenDistributions(logits, logits[..., :0], self.vocabulary)


def alike(dtype: torch.dtype, size: int, excluded: int) -> Callable[[Tensor], Tensor]:
    """Of a draft to which all tokens but one are alike."""
    logits = torch.zeros(size, dtype=dtype).index_fill(0, torch.tensor(excluded), -math.inf)
    return lambda depths: logits.repeat(*depths.shape, 1)


def read_by(draft: DraftSession, prior: Prior, text: list[int]) -> NgramSession:
    session, tokens = NgramSession(draft, prior), torch.tensor([text])
    session.observe(tokens, torch.zeros(1, len(text) - 1, 1), torch.tensor([len(text) - 1]))
    return session


def root_rows(session: NgramSession, token: int) -> NextTokenDistributions:
    return session.expand(Tree.root(torch.tensor([token])), torch.zeros(1, 1, dtype=torch.long))


@torch.no_grad()
def test_all_tokens_may_be_counted_around_any_draft() -> None:
    """But for those that it excludes: with C in float32, and without."""
    found = []
    for dtype in (torch.float32, torch.float64):
        session = read_by(Known(alike(dtype, VOCABULARY, 2)), ALONE.prior(2.0), TEXTS[0])
        log_probs = root_rows(session, TEXTS[0][-1]).log_probs
        assert log_probs[0, 0, 2] == -math.inf  # which followed once
        assert log_probs[0, 0, 1] > math.log(0.5)
        found.append(log_probs.float())
    assert_same_sums(*found, 100)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draft_keeps_its_part_of_the_vocabulary(dtype: torch.dtype) -> None:
    """With C and without: other tokens stay out, a text's own are in, and there are no more children than tokens."""
    three = DraftVocabulary(torch.tensor([1, 2, 3]), VOCABULARY, torch.tensor([[9, -1]]))  # and one that this text has
    session = read_by(Known(alike(dtype, 5, 4), three), READING.default, TEXTS[0])
    rows = root_rows(session, TEXTS[0][-1])
    assert rows.log_probs[0, 0].isfinite().nonzero()[:, 0].tolist() == [1, 2, 3, 9]
    assert rows.log_probs[0, 0, 1] > rows.log_probs[0, 0, 3]  # it followed often
    with pytest.raises(InputError, match="more than the draft's vocabulary of 3 tokens"):
        rows.top(4)


def test_no_probability_exceeds_one_and_no_child_its_parent() -> None:
    """Or reranking would keep a node without its parent, even without the root."""
    for last in range(1, 21):

        def certain(depths: Tensor, last: int = last) -> Tensor:
            """In float32: it goes on with last + 1, last + 2, ... and doubts it as good as never."""
            logits = torch.randn(*depths.shape, VOCABULARY)
            return logits.scatter_add_(2, (last + depths + 2)[..., None], torch.full((*depths.shape, 1), 20.0))

        text = [*range(last + 9)] * 2 + [*range(last + 1)]
        tree = Eagle2(K=3, levels=6, N=5)(read_by(Known(certain), READING.default, text), root_of(last))
        assert tree.depth[0].tolist() == [-1, 0, 1, 2, 3]
        assert (tree.log_prob <= 0).all()


NAMES = ["eagle2", "c2t naive", "opttree", "entropy", "specinfer", "sequoia", "dyspec"]


@pytest.mark.parametrize("kind", ["perturbed", "lookup"])
@pytest.mark.parametrize("name", slow_except(NAMES, "eagle2"))
def test_text_is_that_of_plain_decoding(name: str, kind: str) -> None:
    policy = EVERY_POLICY[name].policy
    mixture = NgramDraft(toy_drafts()["perturbed"], prior_weight=2.0)
    drafter = {"perturbed": mixture, "lookup": LOOKUP}[kind]
    prompts = [*PROMPTS, [4, 4, 9, 4, 4, 9, 4, 4]]
    for sampling in (Sampling(), Sampling(temperature=0.4, seed=3)):
        settings = {"max_new_tokens": 12, "sampling": sampling}
        plain = emitted(list(generate(toy_target(), None, Plain(), prompts, **settings)), len(prompts))
        steps = list(generate(toy_target(), drafter, policy, prompts, rule="target-only", **settings))
        assert [text[:12] for text in emitted(steps, len(prompts))] == plain


@pytest.mark.parametrize("kind", ["same", "lookup"])
def test_rows_end_at_their_own_time(kind: str) -> None:
    """One of them with its first token, before the draft has observed anything."""
    drafter = {"same": NgramDraft(toy_drafts()["same"]), "lookup": LOOKUP}[kind]
    alone = [run(toy_target(), drafter, Eagle2(2, 3, 7), [p], new=9)[0][0] for p in PROMPTS]
    eos = frozenset([alone[1][0]])
    assert any(eos.isdisjoint(text) for text in alone)  # the others go on
    together = run(toy_target(), drafter, Eagle2(2, 3, 7), PROMPTS, new=9, eos=eos)[0]
    assert together == [cut(text, 9, eos) for text in alone]
    assert len(together[1]) == 1


@pytest.mark.parametrize("policy", [Eagle2(3, 2, None), SpecInfer((3, 2))], ids=lambda policy: type(policy).__name__)
@pytest.mark.slow
def test_text_follows_the_targets_law(policy) -> None:
    """Candidates that are drawn from the mixed distributions are verified by them."""
    sampling, models = SAMPLINGS["T=1"], (MarkovTarget(TARGET), NgramDraft(MarkovDraft(DRAFT), prior_weight=1.0))
    steps = list(generate(*models, policy, [PROMPT] * ROWS, max_new_tokens=4, sampling=sampling))
    assert p_of_texts(steps, sampling) > 1e-4
    assert p_of_bonus(steps, sampling) > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("name", ["medusa", "lookup"])
def test_a_text_that_repeats_itself_is_gone_on_with(name: str) -> None:
    """Whatever a random head says, as long as it does not exclude a token."""
    text = [4, 9, 2, 30, 17] * 3 + [4, 9]
    drafter = {"medusa": NgramDraft(deep_pairs()["medusa"][1], 0.01), "lookup": LOOKUP}[name]
    tree = Eagle2(K=1, levels=7, N=None)(reader(drafter, [text]), root_of(text[-1]))
    assert tree.token[0].tolist() == [9, 2, 30, 17, 4, 9, 2, 30]


@pytest.mark.parametrize(
    "policy", [C2T(toy_classifier(), beta=0.25, K=4, W=4, levels=4), JointThreshold(0.03, K=4, levels=4)]
)
@pytest.mark.parametrize("kind", ["perturbed", "lookup"])
@pytest.mark.slow
def test_replays_are_the_live_run(policy, kind: str) -> None:
    target, mixture = toy_target(), NgramDraft(toy_drafts()["perturbed"], prior_weight=3.0)
    drafter = {"perturbed": mixture, "lookup": LOOKUP}[kind]
    sampling = Sampling(temperature=0.4, seed=2)
    texts = write_continuations(target, PROMPTS, max_new_tokens=20, beyond=6, sampling=sampling)
    live = list(generate(target, drafter, policy, PROMPTS, max_new_tokens=20, sampling=sampling))
    assert_same(live, replay(drafter, policy, texts, seed=2, temperature=0.4))
    assert_same(live, visited(replay_all(drafter, policy, texts, seed=2, temperature=0.4)))


def test_what_is_mixed_goes_with_the_kind_of_draft() -> None:
    """And stays so behind what conditions it."""
    fit = PmiBigrams.counted([torch.tensor(text) for text in TEXTS], VOCABULARY)
    drafts = {name: draft for name, (_, draft) in deep_pairs().items()} | {"block": BLOCK}
    conditioned = {f"{name}, conditioned": ReweightedDraft(draft, fit) for name, draft in drafts.items()}
    for name, draft in {**drafts, **conditioned}.items():
        mixing = PARALLEL if name.startswith(("medusa", "published medusa", "block")) else READING
        assert NgramDraft(draft).mixing is mixing
        assert NgramDraft(draft).prior is mixing.default
        weights = tuple(5.0 / mixing.decay**n for n in range(mixing.longest - mixing.shortest + 1))
        assert NgramDraft(draft, 5.0).prior == Prior(mixing.shortest, weights)


def test_without_a_draft_nothing_is_learned() -> None:
    assert NgramDraft(UniformDraft(VOCABULARY, torch.float32)).prior == ALONE.prior(4.0) == Prior(2, (4.0, 1.0, 0.25))


def test_a_mixture_is_known_by_what_it_weighs() -> None:
    """And loaded again by its name."""
    pair = Pair("toy", toy_target(), toy_drafts()["same"], toy_tokenizer(), "", {"draft": ("place", "mark")})
    names, marks = zip(*(with_ngrams(pair, weight).sources["draft"] for weight in (None, 5.0, 6.0)), strict=True)
    assert names == ("place+ngrams", "place+ngrams=5", "place+ngrams=6")
    assert len(set(marks)) == 3
    assert marks[0] == f"mark+ngrams:{checksum(READING.default)[:8]}"


@pytest.mark.parametrize("prior_weight", [0.0, -1.0, float("nan"), float("inf"), 1e-4, 1e7])
def test_a_doubt_that_is_none_is_refused(prior_weight: float) -> None:
    with pytest.raises(InputError, match="must be a number from"):
        NgramDraft(toy_drafts()["same"], prior_weight)


def test_graphs_do_not_draft_with_it() -> None:
    with pytest.raises(
        InputError, match="graphs draft with EAGLE-1/2 heads of plain or scaled positions, without n-grams"
    ):
        StaticDraft(NgramDraft(toy_drafts()["eagle"]), Eagle2(K=2, levels=2), rows=1, capacity=64)
