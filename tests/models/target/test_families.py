"""Every family that the kernels run: transformers' logits, and the same bits in a tree as in plain decoding, in texts
longer than their windows."""

import copy
from functools import cache

import pytest
import torch
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from c2t.kernels.decoder_layers import Kind, works
from c2t.kernels.native import kernels
from c2t.models.drafts.language_model import DraftLM
from c2t.models.target.families import FAMILIES, FULL, SLIDING
from c2t.models.target.prefixes import Prefixes
from c2t.models.target.target import Target
from c2t.policies import Eagle2, Plain
from c2t.policies.hierarchical import Hierarchical
from c2t.tree import Tree
from tests.marks import slow_except
from tests.rounding import assert_within, growth, log_prob_bound
from tests.toys import PROMPTS, TableDraft, language_model, path_of, random_table, root_of, run

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")

VOCABULARY, WINDOW = 61, 3  # a window that is shorter than a tree is deep
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES = {"vocab_size": VOCABULARY, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
SIZES |= {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3, **NO_TOKENS}  # heads of 32
WIDE = {**SIZES, "num_attention_heads": 2, "num_key_value_heads": 1}  # of 64, half of which turn
MIXED = {"sliding_window": WINDOW, "layer_types": [SLIDING, FULL, SLIDING]}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
LONG = {**PARTIAL, "rope_type": "longrope", "short_factor": [1 + i / 10 for i in range(16)], "long_factor": [9.0] * 16}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "original_max_position_embeddings": 32}

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES, mlp_bias=True, attention_bias=True),
    "llama3": LlamaConfig(**SIZES, rope_parameters={**LLAMA3, "original_max_position_embeddings": 16}),
    "mistral": MistralConfig(**SIZES, sliding_window=WINDOW),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2, windows": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=64),
    "gemma3": Gemma3TextConfig(**SIZES, **MIXED, head_dim=32, query_pre_attn_scalar=10),
    "phi3": Phi3Config(**WIDE, sliding_window=WINDOW),
    "phi3, partial": Phi3Config(**WIDE, rope_parameters=PARTIAL),
    "phi3, longrope": Phi3Config(**WIDE, original_max_position_embeddings=64, rope_parameters=LONG),
    "smollm3": SmolLM3Config(**SIZES, no_rope_layers=[1, 0, 1]),
    "olmo2": Olmo2Config(**SIZES),
    "olmo3": Olmo3Config(**SIZES, **MIXED, rope_parameters={FULL: YARN, SLIDING: {"rope_type": "default"}}),
}
# Three layers of some 500 roundings each in sequence, whose errors those after them enlarge at most 100-fold.
NETWORK = 100 * growth(1500)
needs_bytes = pytest.mark.skipif(Kind.INT8 not in works(), reason="this processor has no products of bytes")
FORMS = ["float32", "bf16", pytest.param("int8", marks=needs_bytes), pytest.param("int4", marks=needs_bytes)]


@cache
@torch.inference_mode(False)
def target_of(name: str, form: str = "float32") -> Target:
    model, rounded = language_model(CONFIGS[name], spread=0.3), form in ("int8", "int4")
    return Target(model.bfloat16() if form == "bf16" else model.float(), rounded, form == "int4")


def exact_of(name: str) -> PreTrainedModel:
    """The same weights, which transformers computes with in float64."""
    return copy.deepcopy(target_of(name).model).double()


def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, VOCABULARY, (2, 19), generator=generator), torch.tensor([19, 12])


def tree_of(roots: list[int], seed: int = 0) -> Tree:
    return Eagle2(K=3, levels=4, N=20)(TableDraft(random_table(VOCABULARY, seed)), root_of(*roots))


def test_every_family_is_tested() -> None:
    assert {config.model_type for config in CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_logits_are_those_of_transformers(name: str) -> None:
    """Of two prompts and of every node of a tree; stock forwards have no cache."""
    target, exact = target_of(name), exact_of(name)
    session, (tokens, lengths), tree = target.session(), prompts(), tree_of([5, 7])
    assert session.packed is not None
    first, verified = session.prefill(tokens, lengths), session.verify(tree)
    for row, length in enumerate(lengths):
        text = tokens[row, :length].tolist()
        found, paths = [first.logits.values[row]], [text]
        for slot in (0, 5, tree.size - 1):
            found.append(verified.logits.padded()[row, slot])
            paths.append([*text, int(tree.token[row, 0]), *path_of(tree, row, slot)])
        for logits, path in zip(found, paths, strict=True):
            wanted = exact(torch.tensor([path])).logits[0, -1]
            assert_within(logits, wanted, NETWORK * wanted.abs().max(), f"after {len(path)} tokens")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", slow_except(CONFIGS, "qwen2, windows", "gemma3", "phi3, partial", "smollm3", "olmo3"))
@torch.inference_mode()
def test_a_tree_has_the_bits_of_plain_decoding(name: str, form: str) -> None:
    """In a batch of rows whose windows begin at different slots, and after an accepted path."""
    target, (tokens, lengths) = target_of(name, form), prompts()
    texts = [tokens[row, :length].tolist() for row, length in enumerate(lengths)]
    batch = target.session()
    batch.prefill(tokens, lengths)
    for seed in range(2):
        tree = tree_of([5, 7], seed)
        verified = batch.verify(tree)
        for row, slot in ((0, 3), (1, 9), (0, tree.size - 1)):
            alone = target.session()
            alone.prefill(torch.tensor([texts[row][:4]]), torch.tensor([4]))
            for token in [*texts[row][4:], int(tree.token[row, 0]), *path_of(tree, row, slot)]:
                one = alone.verify(Tree.root(torch.tensor([token])))
                alone.commit(torch.tensor([[0]]), torch.tensor([1]))
            assert torch.equal(one.logits.values[0], verified.logits.padded()[row, slot])
            assert torch.equal(one.features[0, 0], verified.features[row, slot])
        path = tree.ancestors()[0, -1].nonzero()[:, 0].tolist()  # which the first row accepts, and the other its root
        batch.commit(torch.tensor([path, [0] + [-1] * (len(path) - 1)]), torch.tensor([len(path), 1]))
        texts = [texts[0] + tree.token[0, path].tolist(), texts[1] + tree.token[1, :1].tolist()]


@pytest.mark.parametrize("name", slow_except(CONFIGS, "olmo2"))
@torch.inference_mode()
def test_taps_are_the_inputs_of_layers(name: str) -> None:
    target, tokens = Target(target_of(name).model), prompts()[0]
    target.tap((0, 2))
    try:
        found = target.session().prefill(tokens, torch.tensor([19, 19])).features
    finally:
        target.tap(())
    states = target.model(tokens, output_hidden_states=True).hidden_states
    wanted = torch.cat([states[0], states[2]], -1)
    assert_within(found, wanted, NETWORK * wanted.abs().max())


@pytest.mark.parametrize("name", slow_except(CONFIGS, "gemma3"))
@torch.inference_mode()
def test_a_cached_beginning_changes_no_bit(name: str) -> None:
    target, (tokens, lengths) = target_of(name), prompts()
    plain = target.session().prefill(tokens, lengths)
    target.prefixes = Prefixes(2**20)
    try:
        target.session().prefill(tokens[:1, :11], torch.tensor([11]))
        cached = target.session().prefill(tokens, lengths)
    finally:
        target.prefixes = None
    assert torch.equal(plain.logits.values, cached.logits.values)
    for row, length in enumerate(lengths):
        assert torch.equal(plain.features[row, :length], cached.features[row, :length])


@pytest.mark.parametrize("name", slow_except(CONFIGS, "mistral", "gemma3"))
@torch.inference_mode()
def test_a_language_model_drafts_in_its_packed_form(name: str) -> None:
    """Its distributions are transformers', over rows of different length."""
    draft, exact = DraftLM(target_of(name)), exact_of(name)
    session, (tokens, lengths) = draft.session(), prompts()
    assert session.packed is not None
    session.observe(tokens, tokens.new_zeros(*tokens.shape, 1)[:, :-1].float(), lengths - 1)
    last = tokens[torch.arange(2), lengths - 1]
    tree = Eagle2(K=2, levels=5, N=12)(session, root_of(*last.tolist()))
    for row, length in enumerate(lengths):
        for slot in (1, 4, tree.size - 1):
            *path, token = path_of(tree, row, slot)
            logits = exact(torch.tensor([[*tokens[row, :length].tolist(), *path]])).logits[0, -1]
            bound = log_prob_bound(logits) + 2 * NETWORK * logits.abs().max()
            assert_within(tree.log_prob[row, slot], logits.log_softmax(-1)[token], bound)


@needs_bytes
@pytest.mark.parametrize("name", slow_except(CONFIGS, "gemma3"))
def test_the_4_bit_form_drafts_for_every_family(name: str) -> None:
    policy = Hierarchical(Eagle2(K=2, levels=2, N=4), 2)
    draft = DraftLM(target_of(name))
    plain, _ = run(target_of(name), None, Plain(), PROMPTS, new=16)
    assert run(target_of(name), draft, policy, PROMPTS, new=16)[0] == plain
