"""One forward over a tree against one forward per path by stock transformers, for every supported family, on
checkpoints in the published formats."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, MambaConfig

from c2t.caches.padded import KVCache
from c2t.caches.ragged import Ragged
from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.models.target import target as runtime
from c2t.models.target.attention import TREE_ATTENTION
from c2t.models.target.target import Target, check_logits
from c2t.policies import Eagle2, Plain
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.target_verifier import pad
from tests.eagle_reference import CONFIG, head_state, write_head
from tests.rounding import assert_same_network
from tests.toys import (
    FAMILIES,
    PROMPTS,
    SIZES,
    WINDOW,
    TableDraft,
    language_model,
    path_of,
    random_table,
    root_of,
    run,
    save_language_model,
)

VOCABULARY = CONFIG["vocab_size"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory):
    """family -> a pair saved as published ones are and loaded back."""
    root: Path = tmp_path_factory.mktemp("families")

    @cache
    def load(family: str) -> Pair:
        # some families' tokenizers bring a token of their own
        save_language_model(root / family, language_model(FAMILIES[family]), vocabulary=VOCABULARY - 4)
        write_head(root / "head", CONFIG, head_state(CONFIG))
        return load_pair(target=root / family, draft=root / "head", dtype=torch.float64)

    return load


def tree_of(roots: list[int], seed: int) -> Tree:
    """Random trees, three levels deep."""
    return Eagle2(K=3, levels=3, N=12)(TableDraft(random_table(VOCABULARY, seed)), root_of(*roots))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_tree_forward_is_the_forward_of_every_path(family: str, checkpoints) -> None:
    """Three rounds over rows of different length, each of which commits another path; stock forwards have no cache."""
    target = checkpoints(family).target
    texts, session = [list(prompt) for prompt in PROMPTS], target.session()
    verified = session.prefill(*pad(texts, torch.device("cpu")))
    rows = list(range(len(texts)))
    for row in rows:
        plain = target.model(torch.tensor([texts[row]]), output_hidden_states=True)
        assert_same_network(verified.logits.padded()[row, 0], plain.logits[0, -1])
        assert_same_network(verified.features[row, : len(texts[row])], plain.hidden_states[-1][0])
    for turn in range(3):
        tree = tree_of([5 + turn] * len(rows), seed=turn)
        verified = session.verify(tree)
        committed = []
        for place, row in enumerate(rows):
            deepest = tree.size - 1 - place  # another slot in every row
            for slot in range(tree.size):
                text = [*texts[row], 5 + turn, *path_of(tree, place, slot)]
                plain = target.model(torch.tensor([text]), output_hidden_states=True)
                assert_same_network(verified.logits.padded()[place, slot], plain.logits[0, -1])
                assert_same_network(verified.features[place, slot], plain.hidden_states[-1][0, -1])
            texts[row] += [5 + turn, *path_of(tree, place, deepest)]
            path = tree.ancestors()[place, deepest].nonzero()[:, 0].tolist()
            committed.append(path + [-1] * (4 - len(path)))
        slots = torch.tensor(committed)
        session.commit(slots, (slots >= 0).sum(1))
        assert session.cache.lengths.tolist() == [len(texts[row]) for row in rows]
        if turn == 0:
            session.select(torch.tensor([3, 0, 1]))
            rows = [3, 0, 1]
    assert max(len(texts[row]) for row in rows) > WINDOW


SIZES_OF_ROWS = (1, 200, 37, 2)


def ragged_trees(sizes: tuple[int, ...]) -> Tree:
    """Trees of different sizes; those of odd rows have dead slots between their nodes, too."""
    tree = Eagle2(K=10, levels=4, N=max(sizes) + 5)(TableDraft(random_table(VOCABULARY, 0)), root_of(*[5] * len(sizes)))
    alive = torch.arange(tree.size) < torch.tensor(sizes)[:, None]
    leaf = torch.ones_like(alive).scatter(1, tree.parent.clamp(min=0), False)
    alive[1::2] &= ~(leaf[1::2] & (torch.arange(tree.size) % 3 == 0))
    return replace(tree, alive=alive)


# Families without sinks attend in float32 by "eager", which hides what is compared here.
ATTENDING = [("gpt_oss", "eager"), ("gpt2", "sdpa")]
ATTENDING += [(family, kind) for family in ("llama", "mistral", "gemma3") for kind in ("sdpa", TREE_ATTENTION)]


@pytest.mark.parametrize(("family", "attention"), ATTENDING)
@torch.no_grad()
def test_rows_of_any_sizes_are_what_they_are_alone(family: str, attention: str) -> None:
    """Rows laid end to end against each row by itself, and against the rectangular forward over padding."""
    model = language_model(FAMILIES[family])
    model.set_attn_implementation(attention)
    target, tree = Target(model), ragged_trees(SIZES_OF_ROWS)
    tokens, lengths = pad([PROMPTS[0], PROMPTS[1], PROMPTS[1], PROMPTS[0][:1]], torch.device("cpu"))
    session = target.session()
    prefill, verified = session.prefill(tokens, lengths), session.verify(tree)
    assert verified.logits.values.shape[0] in (int(tree.alive.sum()), sum(Ragged.of(tree.alive).spans))

    cache, steps = KVCache(target.config.num_hidden_layers), torch.arange(tokens.shape[1])
    causal = (steps[:, None] >= steps).expand(len(tokens), -1, -1)
    positions = steps.expand_as(tokens)
    target.forward(tokens, positions, causal, cache)
    cache.keep(positions, lengths)
    mask = torch.cat([cache.visible()[:, None].expand(-1, tree.size, -1), tree.ancestors()], 2)
    wide = target.logits(target.forward(tree.token, tree.positions(lengths), mask, cache))
    assert_same_network(verified.logits.padded()[tree.alive], wide[tree.alive])

    for row, length in enumerate(lengths):
        alone = target.session()
        first = alone.prefill(tokens[row : row + 1, :length], length[None])
        assert_same_network(first.logits.values[0], prefill.logits.values[row])
        one = Tree(**{name: column[row : row + 1] for name, column in tree.columns().items()}, capped=tree.capped[:1])
        here, there = alone.verify(one), tree.alive[row]
        assert_same_network(here.logits.padded()[0, there], verified.logits.padded()[row, there])
        assert_same_network(here.features[0, there], verified.features[row, there])


def test_every_family_is_tested() -> None:
    assert {config.model_type for config in FAMILIES.values()} == set(runtime.FAMILIES)


def test_texts_end_where_longrope_changes_its_frequencies(checkpoints) -> None:
    assert checkpoints("phi3").target.max_positions == SIZES["max_position_embeddings"]
    assert checkpoints("phi3-longrope").target.max_positions == 64


def test_models_that_cannot_verify_a_tree_are_refused() -> None:
    mamba = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(InputError, match="mamba models are not supported; known: llama, "):
        Target(mamba)
    llama = language_model(copy.deepcopy(FAMILIES["llama"]))  # others' models have this very config
    llama.set_attn_implementation("flex_attention")
    with pytest.raises(InputError, match=r"flex_attention takes no mask of a tree: .* one of sdpa, eager, c2t_tree"):
        Target(llama)
    capped = language_model(Gemma3TextConfig(**{**SIZES, "final_logit_softcapping": 30.0}, head_dim=12))
    with pytest.raises(InputError, match="final_logit_softcapping"):
        Target(capped)
    with pytest.raises(InputError, match="tree attention has no sinks"):
        Target(language_model(FAMILIES["gpt_oss"])).use_tree_attention()


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2-sliding", "gemma3"])
def test_eager_attention_takes_the_same_trees(family: str, checkpoints) -> None:
    pair, policy = checkpoints(family), Eagle2(K=4, levels=3, N=14)
    expected, _ = run(pair.target, pair.draft, policy, PROMPTS, new=12)
    pair.target.model.set_attn_implementation("eager")
    texts, _ = run(pair.target, pair.draft, policy, PROMPTS, new=12)
    pair.target.model.set_attn_implementation("sdpa")
    assert texts == expected


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_run_in_float32_too(family: str, checkpoints) -> None:
    """In float64 they run one by one, elsewhere as transformers runs them by default."""
    places = {part: place for part, (place, _) in checkpoints(family).sources.items()}
    pair = load_pair(target=places["target"], draft=places["draft"], dtype=torch.float32)
    texts, _ = run(pair.target, pair.draft, Eagle2(K=4, levels=3, N=14), PROMPTS, new=4)
    assert all(len(text) == 4 for text in texts)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_decoding_is_that_of_generate(family: str, checkpoints) -> None:
    pair = checkpoints(family)
    texts, _ = run(pair.target, pair.draft, Eagle2(K=4, levels=3, N=14), PROMPTS, Sampling(), new=16)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        ids = torch.tensor([prompt])
        plain = pair.target.model.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=0)
        assert text == plain[0, len(prompt) :].tolist()


def test_eos_is_what_the_generation_config_says(checkpoints) -> None:
    target = checkpoints("llama").target
    found = []
    for ids in (None, 7, [7, 9]):
        target.model.generation_config.eos_token_id = ids
        found.append(target.eos)
    target.model.generation_config.eos_token_id = None
    assert found == [frozenset(), {7}, {7, 9}]


def test_logits_that_are_no_numbers_name_their_model() -> None:
    check_logits(torch.tensor([[1.0, float("-inf")]]), "target")
    with pytest.raises(InputError, match="target's logits contain NaN"):
        check_logits(torch.tensor([[1.0, float("nan")]]), "target")


@torch.no_grad()
def test_a_target_that_shares_weights_shares_nothing_else() -> None:
    """Also one that has decoded, and holds addresses in its packed form."""
    target = Target(language_model(LlamaConfig(**{**SIZES, "head_dim": 16})).float())
    target.tap((1,))
    texts, _ = run(target, None, Plain(), PROMPTS[:1], new=4)
    own = target.sharing_weights()
    assert all(a is b for a, b in zip(own.model.parameters(), target.model.parameters(), strict=True))
    own.use_tree_attention()
    assert own.has_tree_attention
    assert not target.has_tree_attention
    target.tapped[1] = None
    assert run(own, None, Plain(), PROMPTS[:1], new=4)[0] == texts
    assert own.tapped[1] is not None
    assert target.tapped[1] is None
