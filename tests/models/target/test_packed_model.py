"""The packed target and head: transformers' states, and the same bits in a tree as in plain decoding."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig, PreTrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from c2t.errors import InputError
from c2t.kernels import decoder_layers
from c2t.kernels.decoder_layers import Kind, PackedMatrix
from c2t.kernels.native import kernels
from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.block_draft import BlockDraft
from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head, Eagle3Variant
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.drafts.medusa import MedusaDraft, MedusaHead
from c2t.models.drafts.mtp import MTPHead
from c2t.models.drafts.packed_heads import packed
from c2t.models.target import packed_model
from c2t.models.target.packed_model import PackedModel
from c2t.models.target.target import Target
from c2t.policies import Eagle2, Plain
from c2t.tree import Tree
from tests.rounding import assert_within, growth
from tests.toys import PROMPTS, TableDraft, language_model, path_of, random_table, randomise, root_of, run

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")

VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
}
GPT2 = GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=1, n_head=2)
WHOLE = {**SIZES, "intermediate_size": 128}  # all matrices have whole blocks of inputs, as 8 bits want them
BYTES_WORK = Kind.INT8 in decoder_layers.works()
needs_bytes = pytest.mark.skipif(not BYTES_WORK, reason="this processor has no products of bytes")
# Three layers of some 500 roundings each in sequence, whose errors those after them enlarge at most 100-fold.
NETWORK = 100 * growth(1500)


@cache
@torch.inference_mode(False)
def target_of(dtype: torch.dtype) -> Target:
    rounded = dtype == torch.int8
    model = language_model(LlamaConfig(**(WHOLE if rounded else SIZES))).to(torch.bfloat16)
    return Target(model.to(torch.float32 if rounded else dtype), rounded)


def tree_of(roots: list[int], seed: int = 0) -> Tree:
    return Eagle2(K=3, levels=4, N=20)(TableDraft(random_table(VOCABULARY, seed)), root_of(*roots))


def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, VOCABULARY, (2, 19), generator=generator), torch.tensor([19, 12])


@torch.inference_mode()
def test_states_are_those_of_transformers() -> None:
    target = target_of(torch.float32)
    tokens, _ = prompts()
    session = target.session()
    assert session.packed is not None
    found = session.prefill(tokens, torch.tensor([19, 19]))
    exact = language_model(LlamaConfig(**SIZES)).to(torch.bfloat16).double()(tokens, output_hidden_states=True)
    for features, wanted in ((found.features, exact.hidden_states[-1]), (found.logits.values, exact.logits[:, -1])):
        assert_within(features, wanted, NETWORK * wanted.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.int8, marks=needs_bytes)])
@torch.inference_mode()
def test_a_tree_has_the_bits_of_plain_decoding(dtype: torch.dtype) -> None:
    """Logits and features of every slot, in a batch of rows of different length and after an accepted path, are those
    of feeding its path token by token."""
    target = target_of(dtype)
    tokens, lengths = prompts()
    texts = [tokens[row, :length].tolist() for row, length in enumerate(lengths)]
    batch = target.session()
    batch.prefill(tokens, lengths)
    for seed in range(2):
        tree = tree_of([5, 7], seed)
        verified = batch.verify(tree)
        for row, slot in [(0, 0), (1, 0), (0, 3), (1, 9), (0, tree.size - 1)]:
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


@torch.inference_mode()
def test_taps_are_the_inputs_of_layers() -> None:
    target = Target(language_model(LlamaConfig(**SIZES)).float())
    target.tap((0, 2))
    tokens, _ = prompts()
    found = target.session().prefill(tokens, torch.tensor([19, 19])).features
    states = language_model(LlamaConfig(**SIZES))(tokens, output_hidden_states=True).hidden_states
    wanted = torch.cat([states[0], states[2]], -1)
    assert_within(found, wanted, NETWORK * wanted.abs().max())


TWO_LAYERS = LlamaConfig(**{**SIZES, "num_hidden_layers": 2})
HEADS = {
    "eagle": lambda: EagleHead(TWO_LAYERS, qkv_bias=True),
    "eagle3": lambda: Eagle3Head(TWO_LAYERS, 32),
    "eagle3, biased": lambda: Eagle3Head(LlamaConfig(**SIZES, attention_bias=True), 32),
    "eagle3, norm before residual": lambda: variant_of(norm_before_residual=True),
    "eagle3, norm of the output": lambda: variant_of(norm_output=True),
    "eagle3, a window in one layer": lambda: variant_of(windows=(0, 4)),
}


def variant_of(**changes: Any) -> Eagle3Head:
    return Eagle3Head(TWO_LAYERS, 32, variant=Eagle3Variant(**changes))


def head_of(kind: str, dtype: torch.dtype = torch.float32) -> Head:
    head = randomise(HEADS[kind](), 1, spread=0.1)
    head.embed_tokens = target_of(torch.float32).embed_tokens
    if isinstance(head, Eagle3Head):
        head.d2t.copy_(torch.arange(32) // 2)
    return head.to(dtype).eval()


@pytest.mark.parametrize("kind", HEADS)
@torch.inference_mode()
def test_the_head_computes_what_its_module_does(kind: str) -> None:
    head = head_of(kind)
    draft = EagleDraft(head, target_of(torch.float32).lm_head)
    tokens, features = prompts()[0], torch.randn(2, 18, head.fc.in_features if "3" in kind else 64)
    head, own = copy.deepcopy(head).double(), copy.deepcopy(draft.lm_head.linear).double()
    wanted = head(head.read(features.double()), tokens[:, 1:])
    read = own(head.readable(wanted))
    for lengths in ([18, 11], [1, 18], [5, 5]):
        session = draft.session()
        most = max(lengths)
        session.observe(tokens[:, : most + 1], features[:, :most], torch.tensor(lengths))
        assert session.packed is not None
        logits = session._logits(session.hidden)
        for row, length in enumerate(lengths):
            assert_within(session.hidden[row, 0], wanted[row, length - 1], NETWORK * wanted.abs().max())
            assert_within(logits[row, 0], read[row, length - 1], NETWORK * read.abs().max())


@needs_bytes
@pytest.mark.parametrize("kind", [EagleHead, Eagle3Head])
@torch.inference_mode()
def test_a_rounded_head_is_nearly_the_module(kind: type[Head]) -> None:
    """Its matrices are in bytes, and so is its copy of the LM head; the target's own is not."""
    config = LlamaConfig(**{**WHOLE, "num_hidden_layers": 1})
    head = kind(config) if kind is EagleHead else kind(config, VOCABULARY)
    head = randomise(head, 1, spread=0.1).float().eval()
    target = Target(language_model(LlamaConfig(**SIZES)).float())
    head.embed_tokens = target.embed_tokens
    tokens, features = prompts()[0], torch.randn(2, 18, 64 if kind is EagleHead else 3 * 64)
    states: list[torch.Tensor] = []
    for rounded in (False, True):
        draft = EagleDraft(head, target.lm_head, rounded)
        session = draft.session()
        session.observe(tokens, features, torch.tensor([18, 18]))
        states.append(session.hidden)
        kinds = {draft.packed.parts.reader.matrix.kind, draft.lm_head.packed().kind}
        assert (kinds == {Kind.INT8}) == rounded
    assert target.packed.decoder.layers.cached == torch.float32
    off = (states[1] - states[0]).abs().mean() / states[0].abs().mean()
    assert 2**-12 < off < 2**-4


@torch.no_grad()
def test_what_has_changed_is_packed_anew() -> None:
    target = Target(language_model(LlamaConfig(**SIZES)).float())
    model, forms = target.model.model, [target.packed]
    assert target.packed is forms[0]
    model.layers[1].mlp.up_proj.weight.mul_(2)
    forms.append(target.packed)
    model.layers[0].mlp.down_proj.weight.data += 0.01  # as PEFT merges adapters; torch counts no version
    forms.append(target.packed)
    model.rotary_emb.inv_freq.mul_(0.5)
    forms.append(target.packed)
    target.model.config.rms_norm_eps = 0.5
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.variance_epsilon = 0.5
    forms.append(target.packed)
    assert len(set(map(id, forms))) == 5
    assert target.packed is forms[-1]


def test_what_is_not_served() -> None:
    llama, gelu = LlamaConfig(**SIZES), LlamaConfig(**SIZES, hidden_act="gelu")
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    others = [LlamaConfig(**SIZES, rope_parameters=dynamic), LlamaConfig(**{**SIZES, "head_dim": 24}), gelu]
    others += [GPT2, Gemma3TextConfig(**SIZES, use_bidirectional_attention=True)]
    assert PackedModel.serves(language_model(llama).float())
    assert not PackedModel.serves(language_model(llama).double())
    assert not any(PackedModel.serves(language_model(config).float()) for config in others)
    for head in (EagleHead(llama), Eagle3Head(llama, VOCABULARY)):
        head.embed_tokens = nn.Embedding(VOCABULARY, SIZES["hidden_size"])
        assert packed(head.float(), False) is not None
        assert packed(head.double(), False) is None
    for config, width in ((Qwen3Config(**SIZES), 64), (gelu, 64), (llama, 32)):
        head = Eagle3Head(config, VOCABULARY)
        head.embed_tokens = nn.Embedding(VOCABULARY, width)
        assert packed(head, False) is None


@needs_bytes
@torch.inference_mode()
def test_a_rounded_target_is_nearly_the_model() -> None:
    """Layers and LM head are in bytes; the model's own weights stay. Each of 13 products in sequence errs by about
    2^-7 of its size, and random layers enlarge that a little."""
    rounded = target_of(torch.int8)
    exact = Target(language_model(LlamaConfig(**WHOLE)).to(torch.bfloat16).float())
    tokens, lengths = prompts()[0], torch.tensor([19, 19])
    off = [target.session().prefill(tokens, lengths).logits.values for target in (exact, rounded)]
    assert 2**-12 < (off[1] - off[0]).abs().mean() / off[0].abs().mean() < 2**-3
    matrices = [each for each in rounded.packed.decoder.layers._packed_parts if isinstance(each, PackedMatrix)]
    assert {each.kind for each in (*matrices, rounded._project.packed())} == {Kind.INT8}
    assert rounded.model.lm_head.weight.equal(exact.model.lm_head.weight)


@needs_bytes
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LlamaConfig(**SIZES), "some of its matrices have 96 inputs, no multiple of 64"),
        (LlamaConfig(**WHOLE, hidden_act="gelu"), "not this llama"),
        (GPT2, "not this gpt2"),
        (LlamaConfig(**WHOLE), "its LM head is a Sequential"),
    ],
)
def test_what_cannot_be_rounded_is_refused(config: PreTrainedConfig, reason: str) -> None:
    model = language_model(config).float()
    if "LM head" in reason:
        model.set_output_embeddings(nn.Sequential(model.lm_head))
    with pytest.raises(InputError, match=f"int8: .*{reason}.*; choose another dtype"):
        Target(model, rounded=True)


def test_without_products_of_bytes_no_target_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_model, "works", lambda: [Kind.BF16_STORED])
    with pytest.raises(InputError, match="AVX-512 VNNI"):
        Target(language_model(LlamaConfig(**WHOLE)).float(), rounded=True)


@needs_bytes
def test_a_rounded_target_never_computes_in_another_type() -> None:
    """As tree attention would, or an adapter that was put into its layers."""
    target = Target(language_model(LlamaConfig(**WHOLE)).float(), rounded=True)
    with pytest.raises(InputError, match="not int8"):
        target.use_tree_attention()
    target.model.model.layers[1].mlp.up_proj = nn.Sequential(target.model.model.layers[1].mlp.up_proj)
    with pytest.raises(InputError, match="not what runs in int8 any more: load it again"):
        target.session()


def test_without_the_kernels_transformers_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_model, "packable", lambda *_: False)
    assert target_of(torch.float32).session().packed is None


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp", "medusa", "dspark"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rounded", [False, True])
def test_greedy_text_is_the_targets_for_every_head(kind: str, dtype: torch.dtype, rounded: bool) -> None:
    """Heads without a packed form read the packed target's features in their own dtype; those with one may be in
    bytes, and so may the target."""
    config = LlamaConfig(**{**WHOLE, "num_hidden_layers": 7})
    narrow = LlamaConfig(**{**WHOLE, "num_hidden_layers": 1})
    target = Target(language_model(config).to(dtype).requires_grad_(False), rounded and BYTES_WORK)
    kinds = {"eagle": EagleHead, "eagle3": Eagle3Head, "mtp": MTPHead, "medusa": MedusaHead, "dspark": BlockHead}
    form = BlockForm(4, 0, (1, 2, 3), from_anchor=True, markov_rank=8, confidence=True, confidence_reads_token=True)
    head = kinds[kind](narrow, *{"eagle3": [VOCABULARY], "medusa": [2], "dspark": [form]}.get(kind, []))
    head = randomise(head, seed=1, spread=0.3).to(dtype).requires_grad_(False).eval()
    head.embed_tokens = target.embed_tokens
    target.tap(head.taps(7))
    rest = () if kind == "dspark" else (rounded,)
    draft = {"medusa": MedusaDraft, "dspark": BlockDraft}.get(kind, EagleDraft)(head, target.lm_head, *rest)
    plain, _ = run(target, None, Plain(), PROMPTS, new=16)
    assert target.session().packed is not None
    assert run(target, draft, Eagle2(K=3, levels=3, N=10), PROMPTS, new=16)[0] == plain
