"""Hierarchical speculation: whatever the int4 target generates, the text is the target's own. On toys a target with
noise on its weights decodes ahead: right often, but not always, and on any machine."""

import copy
from functools import cache

import pytest
import torch

from c2t.batching import BatchDecoder
from c2t.decoder import SpeculativeDecoder
from c2t.decoding import Step, cut
from c2t.errors import InputError
from c2t.kernels.decoder_layers import Kind, works
from c2t.kernels.rescored import RescoredMatrix
from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.block_draft import BlockDraft
from c2t.models.drafts.oov_tokens import OutOfVocabulary
from c2t.models.drafts.session import DraftSession
from c2t.models.loading.load import Pair
from c2t.models.target.target import Target
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies import DDD, Budget, Chain, Eagle2, Hierarchical, JointThreshold, Plain, SpecInfer
from c2t.protocols import Policy
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.sessions import coupled
from c2t.tree import Tree
from tests.marks import slow_except
from tests.rounding import assert_same_network
from tests.toys import (
    PROMPTS,
    SIZES,
    LlamaConfig,
    deep_pairs,
    language_model,
    perturbed,
    randomise,
    run,
    toy_drafts,
    toy_target,
    toy_tokenizer,
)

NEW = 14
INNER: dict[str, Policy] = {
    "plain": Plain(),
    "chain": Chain(2),
    "eagle2": Eagle2(K=3, levels=2, N=6),
    "threshold": JointThreshold(0.05, K=3, W=4, levels=3),
}
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(0.8, top_p=0.95, repetition_penalty=1.1, seed=3, frequency_penalty=0.3),
}


@cache
@torch.inference_mode(False)  # kept for tests in and out of it
def target_with_stage(noise: float = 0.03) -> Target:
    """The toy target with an int4 form of its own; noise 0: that is the target itself."""
    target = Target(language_model(LlamaConfig(**SIZES)))
    vars(target)["quantized"] = perturbed(target, noise).model if noise else target
    return target


def drafts() -> dict:
    return {**toy_drafts(), "ngrams": NgramDraft(toy_drafts()["perturbed"], 2.0)}


@cache
def plain(sampling: str) -> list[list[int]]:
    return run(toy_target(), None, Plain(), PROMPTS, SAMPLINGS[sampling], new=NEW)[0]


def hierarchical(
    policy: str, draft: str, sampling: str, rounds: int = 3, noise: float = 0.03, **settings
) -> tuple[list[list[int]], list[Step]]:
    drafter = None if policy == "plain" else drafts()[draft]
    chosen = Hierarchical(INNER[policy], rounds)
    return run(target_with_stage(noise), drafter, chosen, PROMPTS, SAMPLINGS[sampling], new=NEW, **settings)


def test_int4_rounds_have_the_noise_of_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the target as its own int4 form and as its draft every guess is right, if its noise is."""
    monkeypatch.setattr(coupled, "NOISE_SCALE", 1.0)
    sampling = Sampling(0.9, seed=5)
    _, steps = run(target_with_stage(0), toy_drafts()["same"], Hierarchical(Chain(2), 3), PROMPTS, sampling, new=40)
    assert all((step.accepted.length == 3 * 3 + 2).all() for step in steps[1:-1])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("draft", slow_except(["eagle", "perturbed", "ngrams"], "eagle"))
@pytest.mark.parametrize("policy", INNER)
def test_text_is_that_of_plain_decoding(policy: str, draft: str, sampling: str) -> None:
    assert hierarchical(policy, draft, sampling)[0] == plain(sampling)


def test_int4_rounds_of_these_tests_are_partly_accepted() -> None:
    """Else exactness would say nothing."""
    _, steps = hierarchical("eagle2", "perturbed", "greedy")
    assert len({length for step in steps[1:] for length in step.accepted.length.tolist()}) > 2


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_int4_form_that_is_the_target_itself_is_accepted_whole(sampling: str) -> None:
    """Its draws have the target's own random numbers. Of the trees behind it a part is accepted."""
    _, steps = hierarchical("threshold", "perturbed", sampling, noise=0)
    behind = torch.stack([step.accepted.length + 1 - certain(step.tree).sum(1) for step in steps[1:]])
    assert behind.min() >= 0
    assert behind.max() > 0


def certain(tree: Tree) -> torch.Tensor:
    """Nodes that the int4 target generated: it gives them probability 1, which no draft here does."""
    return tree.alive & (tree.log_joint == 0)


@pytest.mark.parametrize("draft", ["eagle3", "mtp", "medusa", "published medusa"])
def test_text_is_that_of_plain_decoding_with_other_heads(draft: str) -> None:
    """The int4 target brings the states that they read, and they are rewound."""
    known, drafter = deep_pairs()[draft]
    target = copy.copy(known)
    vars(target)["quantized"] = perturbed(known, 0.02).model
    target.quantized.tap(target.taps)
    expected = run(target, None, Plain(), PROMPTS[:2], new=NEW)[0]
    found, steps = run(target, drafter, Hierarchical(INNER["threshold"], 3), PROMPTS[:2], new=NEW)
    assert found == expected
    assert sum(int(step.accepted.length.sum()) for step in steps[1:])


def test_a_block_drafter_is_rewound_as_well() -> None:
    target = target_with_stage()
    head = randomise(BlockHead(LlamaConfig(**SIZES | {"num_hidden_layers": 1}), BlockForm(4, 0, (0,))).double(), 8, 0.3)
    head.embed_tokens = target.embed_tokens
    tapped = Target(target.model)
    for each in (tapped, stage := Target(target.quantized.model)):
        each.tap(head.taps(2))
    vars(tapped)["quantized"] = stage
    drafter = BlockDraft(head.requires_grad_(False).eval(), target.lm_head)
    assert run(tapped, drafter, Hierarchical(INNER["threshold"], 3), PROMPTS, new=NEW)[0] == plain("greedy")


def test_oov_tokens_of_int4_rounds_are_rewound() -> None:
    own = OutOfVocabulary(frozenset(range(10)), torch.device("cpu"))
    own.observe(torch.tensor([[1, 20, 21, 22], [30, 1, 2, 31]]), torch.tensor([3, 3]))
    own.rewind(torch.tensor([2, 0]))
    assert own.ids.tolist() == [[20, -1], [30, 31]]
    own.observe(torch.tensor([[20, 22, 3], [31, 4, 5]]), torch.tensor([2, 2]))
    assert own.ids.tolist() == [[20, 22], [30, 31]]


@pytest.mark.parametrize("inner", ["chain", "eagle2"])
def test_a_tree_is_the_chain_of_all_rounds_with_the_tree_of_one_more_behind_it(inner: str) -> None:
    _, steps = hierarchical(inner, "perturbed", "greedy", rounds=4)
    policy = Hierarchical(INNER[inner], 4)
    assert policy.levels == 4 * 3 + 2
    written = set()
    for step in steps[1:]:
        tree = step.tree
        assert tree.size <= policy.size.tokens
        for row, mine in enumerate(certain(tree)):
            chain, others = mine.nonzero()[:, 0], (tree.alive[row] & ~mine).nonzero()[:, 0]
            assert chain.tolist() == list(range(len(chain)))
            assert tree.parent[row, chain].tolist() == tree.depth[row, chain].tolist() == [*range(-1, len(chain) - 1)]
            above = tree.parent[row, others]
            assert set(above.tolist()) <= {len(chain) - 1, *others.tolist()}
            assert torch.equal(tree.depth[row, others], tree.depth[row, above] + 1)
            written.add(len(chain))
    assert len(written) > 1  # so rows of a batch have trees at different places
    first = steps[1]  # later ones may end with their texts
    assert certain(first.tree).sum(1).min() >= 1 + 4  # every round writes a token at least
    assert first.tree.alive.sum(1).max() > certain(first.tree).sum(1).max()
    assert first.draft_passes.min() >= 4 * (1 + 1) + 1  # the int4 target's own forward, and one of the draft at least


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_int4_rounds_end_with_the_last_text(sampling: str) -> None:
    """What it would write behind that is for nothing."""
    chain, rounds = INNER["chain"], 4
    _, steps = hierarchical("chain", "perturbed", sampling, rounds=rounds, noise=0)
    needed = NEW - torch.stack([step.count for step in steps[:-1]]).sum(0)
    assert steps[-1].tree.size - 1 <= needed.max() + chain.levels < rounds * (chain.levels + 1)
    eos = frozenset([plain(sampling)[0][5]])
    text, steps = run(
        target_with_stage(0),
        drafts()["perturbed"],
        Hierarchical(chain, 9),
        PROMPTS[:1],
        SAMPLINGS[sampling],
        new=NEW,
        eos=eos,
    )
    assert text[0] == cut(plain(sampling)[0], NEW, eos)
    assert sum(step.tree.size - 1 for step in steps[1:]) <= len(text[0]) + chain.levels


def test_rows_end_at_their_own_time() -> None:
    """Between int4 rounds and their verification, rows leave: the others' drafts are rewound only their own."""
    eos = frozenset([plain("greedy")[1][4], plain("greedy")[2][7]])
    expected = [cut(text, NEW, eos) for text in plain("greedy")]
    assert len({len(text) for text in expected}) > 1
    for draft in ("eagle", "ngrams"):
        assert hierarchical("eagle2", draft, "greedy", eos=eos)[0] == expected


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("draft", slow_except(["eagle", "perturbed", "ngrams"], "eagle"))
@pytest.mark.parametrize("policy", INNER)
def test_a_row_of_a_batch_does_what_it_does_alone(policy: str, draft: str, sampling: str) -> None:
    """Texts end at different int4 rounds, and the rows beside them go on."""
    eos = frozenset([plain(sampling)[1][4], plain(sampling)[2][7]])
    _, steps = hierarchical(policy, draft, sampling, eos=eos)
    batch = counted(steps, len(PROMPTS))
    drafter = None if policy == "plain" else drafts()[draft]
    settings = {"new": NEW, "eos": eos, "sampling": SAMPLINGS[sampling]}
    for row, prompt in enumerate(PROMPTS):
        _, steps = run(target_with_stage(), drafter, Hierarchical(INNER[policy]), [prompt], sequences=[row], **settings)
        assert counted(steps, 1) == [batch[row]]


def counted(steps: list[Step], prompts: int) -> list[list[list[int]]]:
    """Tokens verified and accepted, and draft passes, in each round of each prompt."""
    found: list[list[list[int]]] = [[] for _ in range(prompts)]
    for step in steps[1:]:
        columns = torch.stack([step.tree.sizes, step.accepted.length, step.draft_passes], 1)
        for prompt, numbers in zip(step.rows.tolist(), columns.tolist(), strict=True):
            found[prompt].append(numbers)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["eagle", "ngrams"])
def test_requests_that_come_and_go_have_the_text_that_they_would_have_alone(draft: str) -> None:
    pair = Pair("toy", target_with_stage(), drafts()[draft], toy_tokenizer(), "", {})
    samplings = [SAMPLINGS["greedy"], SAMPLINGS["sampled"]] * 2
    decoder = BatchDecoder(pair, Hierarchical(INNER["threshold"], 2), max_rows=3)
    requests = []
    for number, (prompt, sampling) in enumerate(zip(PROMPTS, samplings, strict=True)):
        requests.append(decoder.submit(prompt, NEW, sampling, sequence=number))
        decoder.step()
    while decoder.running or decoder.waiting:
        decoder.step()
    texts = [plain("greedy" if number % 2 == 0 else "sampled")[number] for number in range(len(PROMPTS))]
    assert [request.tokens for request in requests] == texts


@pytest.mark.parametrize("draft", ["eagle", "perturbed", "ngrams"])
def test_a_draft_that_is_rewound_guesses_as_if_it_had_never_known(draft: str) -> None:
    """Rows are rewound different numbers of tokens, and what they observe then is other text."""
    text = torch.randint(0, SIZES["vocab_size"], (2, 13), generator=torch.Generator().manual_seed(1))
    other = torch.randint(0, SIZES["vocab_size"], (2, 5), generator=torch.Generator().manual_seed(2))
    states = torch.randn(2, 20, SIZES["hidden_size"], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    back, eight, four = torch.tensor([3, 1]), torch.tensor([8, 8]), torch.tensor([4, 4])

    def observed(number: int | None) -> DraftSession:
        """A session that has read it all, and is rewound; or row `number` alone, which reads what is left."""
        session = drafts()[draft].session()
        rows = slice(None) if number is None else slice(number, number + 1)
        session.observe(text[rows, :9], states[rows, :8], eight[rows])
        if number is None:
            session.observe(text[:, 8:13], states[:, 8:12], four)
            session.rewind(back)
        else:
            left = 4 - int(back[number])
            session.observe(text[rows, 8 : 9 + left], states[rows, 8 : 8 + left], torch.tensor([left]))
        return session

    with torch.inference_mode():
        both = observed(None)
        ends = 12 - back
        new = torch.stack(
            [torch.cat([text[row, end : end + 1], other[row, 1:]]) for row, end in enumerate(ends.tolist())]
        )
        both.observe(new, states[:, 15:19], four)
        together = guesses(both, new[:, -1])
        for row in range(2):
            one = observed(row)
            one.observe(new[row : row + 1], states[row : row + 1, 15:19], four[:1])
            alone = guesses(one, new[row : row + 1, -1])
            assert_same_network(together[row : row + 1], alone)


def guesses(session: DraftSession, root: torch.Tensor) -> torch.Tensor:
    tree = Tree.root(root, torch.float64)
    return session.expand(tree, torch.zeros_like(root)[:, None]).log_probs


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (SpecInfer((2, 1)), "has sampled candidates"),
        (Eagle2, "Eagle2 is a class: give an instance"),
        (Budget(Eagle2(), nodes=9), "a policy of its own"),
    ],
    ids=["sampled", "class", "budget"],
)
def test_a_policy_that_cannot_run_in_int4_is_refused(inner: Policy, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Hierarchical(inner)


@pytest.mark.parametrize("rounds", [0, -1, 100])
def test_rounds_that_make_no_chain_are_refused(rounds: int) -> None:
    with pytest.raises(InputError, match="lower rounds" if rounds > 0 else "rounds = "):
        Hierarchical(Eagle2(), rounds)


def test_replay_says_that_it_cannot() -> None:
    texts = write_continuations(toy_target(), PROMPTS, max_new_tokens=4, beyond=9, sampling=Sampling())
    with pytest.raises(InputError, match="drafts in live decoding only"):
        list(replay(toy_drafts()["eagle"], Hierarchical(DDD(), 2), texts, seed=0))


def test_a_target_without_an_int4_form_says_so_at_once() -> None:
    pair = Pair("toy", Target(language_model(LlamaConfig(**SIZES))), toy_drafts()["eagle"], toy_tokenizer(), "", {})
    for decoder in (SpeculativeDecoder, BatchDecoder):
        with pytest.raises(InputError, match="cannot draft in 4 bits"):
            decoder(pair, Hierarchical(Eagle2()))


@pytest.mark.skipif(Kind.INT8 not in works(), reason="this processor has no products of bytes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_llama_in_four_bits_decodes_ahead_of_itself(dtype: torch.dtype) -> None:
    """By the kernels: in either type of keys and values, and its text is plain decoding's, to the bit."""
    sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = language_model(LlamaConfig(**sizes), spread=0.3).to(dtype)
    target = Target(model)
    assert target.quantized.packed.decoder.layers.int4
    assert isinstance(target.quantized.packed_lm_head, RescoredMatrix)
    expected = run(target, None, Plain(), PROMPTS, Sampling(), new=NEW)[0]
    found, steps = run(target, None, Hierarchical(Plain(), 4), PROMPTS, Sampling(), new=NEW)
    assert found == expected
    assert sum(int(step.accepted.length.sum()) for step in steps[1:])
