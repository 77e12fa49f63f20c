"""Toy models for the tests of the runtime: tiny and random, in float64, and sure enough of their text that drafts are
partly accepted."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.decoding import Step, cut
from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.block_draft import BlockDraft
from c2t.models.drafts.eagle import EagleHead
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.drafts.language_model import DraftLM
from c2t.models.drafts.medusa import MedusaDraft, MedusaHead
from c2t.models.drafts.mtp import MTPHead
from c2t.models.drafts.published_medusa import PublishedMedusaDraft, PublishedMedusaHeads
from c2t.models.drafts.session import BaseDraft, DraftSession
from c2t.models.target.target import Target
from c2t.policies.mcsd_plus import ForkSession
from c2t.protocols import Draft, NextTokenDistributions, Root
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.target_verifier import generate, pad

VOCABULARY = 48
PROMPTS = [[1, 5, 9, 40], [2, 3, 4, 5, 6, 7, 8, 9, 10], [3], [7, 7, 2, 30, 31, 5]]
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    **NO_TOKENS,
}
WINDOW = 6  # of the sliding attention; shorter than every text of the tests
KINDS = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}

FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-sliding": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=12),
    "mistral": MistralConfig(**SIZES, sliding_window=WINDOW),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, head_dim=12, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
    "mixtral": MixtralConfig(**SIZES, **EXPERTS, sliding_window=WINDOW),
    "gpt_oss": GptOssConfig(**SIZES, **EXPERTS, **KINDS, head_dim=12),
    "gemma3": Gemma3TextConfig(**SIZES, **KINDS, head_dim=12, query_pre_attn_scalar=10),
    "phi3": Phi3Config(**SIZES, sliding_window=WINDOW),
    "phi3-longrope": Phi3Config(**SIZES, original_max_position_embeddings=64, rope_parameters=LONG),
    "smollm3": SmolLM3Config(**SIZES, no_rope_layers=[1, 0]),
    "olmo2": Olmo2Config(**SIZES),
    "olmo3": Olmo3Config(**SIZES, **KINDS),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256, **NO_TOKENS),
}


def randomise(module: nn.Module, seed: int, spread: float = 0.4) -> nn.Module:
    """Random weights everywhere, norms (about 1) and biases too, so that leaving one out shows; the same whatever was
    drawn before."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * spread
            parameter.copy_(noise if parameter.ndim > 1 or name.endswith("bias") else 1 + noise)
    return module


def language_model(config: PreTrainedConfig, seed: int = 0, spread: float = 0.4) -> PreTrainedModel:
    # "eager" experts: torch's grouped products take no float64
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").double().eval()
    return randomise(model, seed, spread)


@cache
@torch.inference_mode(False)  # kept for tests in and out of it
def toy_target(vocabulary: int = VOCABULARY, seed: int = 0, spread: float = 0.4) -> Target:
    return Target(language_model(LlamaConfig(**{**SIZES, "vocab_size": vocabulary}), seed, spread))


def random_eagle(target: Target, seed: int = 1) -> EagleDraft:
    """A head with random weights: accepted by luck only."""
    config = LlamaConfig(**{**SIZES, "vocab_size": target.config.vocab_size, "num_hidden_layers": 1})
    head = randomise(EagleHead(config).double(), seed, spread=0.3).eval()
    head.embed_tokens = target.embed_tokens
    return EagleDraft(head, target.lm_head)


def perturbed(target: Target, noise: float = 0.03, seed: int = 2) -> DraftLM:
    """The target itself with noise on its weights: right often, but not always."""
    model = language_model(target.model.config)
    model.load_state_dict(target.model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=noise)
    return DraftLM(Target(model))


@cache
@torch.inference_mode(False)  # kept for tests in and out of it
def toy_drafts() -> dict[str, EagleDraft | DraftLM]:
    target = toy_target()
    return {"eagle": random_eagle(target), "same": DraftLM(target), "perturbed": perturbed(target)}


@cache
@torch.inference_mode(False)  # kept for tests in and out of it
def deep_pairs() -> dict[str, tuple[Target, BaseDraft]]:
    """A target deep enough for EAGLE-3 with a draft of every kind; EAGLE-3's and DSpark's is the same model with tapped
    layers."""
    config = LlamaConfig(**{**SIZES, "num_hidden_layers": 7})
    target, tapped = (Target(language_model(config, spread=0.2)) for _ in range(2))
    narrow = LlamaConfig(**{**SIZES, "num_hidden_layers": 1})
    mtp = randomise(MTPHead(narrow).double(), seed=4, spread=0.3)
    eagle3 = randomise(Eagle3Head(narrow, VOCABULARY).double(), seed=5, spread=0.3)
    medusa = randomise(MedusaHead(narrow, 2).double(), seed=6, spread=0.3)
    published = randomise(PublishedMedusaHeads(3, 2, SIZES["hidden_size"], VOCABULARY).double(), seed=7, spread=0.2)
    published.requires_grad_(False)
    for head in (mtp, eagle3, medusa):
        head.embed_tokens = target.embed_tokens
        head.requires_grad_(False).eval()
    tapped.tap(eagle3.taps(7))
    form = BlockForm(4, 0, (1, 2, 3), from_anchor=True, markov_rank=5, markov_kind="rnn", confidence=True)
    dspark = randomise(BlockHead(narrow, form).double(), seed=8, spread=0.3).requires_grad_(False).eval()
    dspark.embed_tokens = target.embed_tokens
    return {
        "eagle": (target, random_eagle(target)),
        "eagle3": (tapped, EagleDraft(eagle3, target.lm_head)),
        "mtp": (target, EagleDraft(mtp, target.lm_head)),
        "medusa": (target, MedusaDraft(medusa, target.lm_head)),
        "published medusa": (target, PublishedMedusaDraft(published, target.lm_head)),
        "dspark": (tapped, BlockDraft(dspark, target.lm_head)),
        "lm": (target, perturbed(target, noise=0.02)),
    }


def toy_classifier(seed: int = 0, M: int | None = 1000, label: str = "accepted") -> TreeClassifier:
    """Confidence that grows with the joint probability and depends on entropy and depth in a random way. In float64:
    the order of two nodes must not hang on how a processor adds."""
    model = TreeClassifier(ClassifierConfig(hidden=6, M=M, label=label)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        model.hidden.weight[0] = torch.tensor([1.0, 0.0, 0.0])
        model.hidden.bias[0] = 0.0
        model.output.weight[0, 0] = 12.0
        model.output.bias[0] = -1.0
    return model.eval()


def toy_tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Words "w0", "w1", ... are the tokens 0, 1, ..."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0"))  # noqa: S106 - a token of the vocabulary
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, clean_up_tokenization_spaces=False)


def save_language_model(folder: Path, model: PreTrainedModel, vocabulary: int = VOCABULARY) -> Path:
    """A causal LM with its tokenizer, as published ones lie on disk."""
    model.save_pretrained(folder)
    toy_tokenizer(vocabulary).save_pretrained(folder)
    return folder


def run(target, drafter, policy, prompts, sampling=Sampling(), *, new=24, eos=frozenset(), sequences=None):
    """New tokens of each prompt, cut as users see them, and the steps that made them."""
    steps = list(
        generate(target, drafter, policy, prompts, max_new_tokens=new, sampling=sampling, eos=eos, sequences=sequences)
    )
    return [cut(tokens, new, eos) for tokens in emitted(steps, len(prompts))], steps


def emitted(steps: Sequence[Step], prompts: int) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in range(prompts)]
    for step in steps:
        for row, prompt in enumerate(step.rows.tolist()):
            tokens[prompt] += step.tokens[row, : step.count[row]].tolist()
    return tokens


def observed(draft: BaseDraft, target: Target, *texts: list[int]) -> tuple[DraftSession, Tensor]:
    """A session that has read the texts up to their last tokens, the roots, and the features that it has read."""
    tokens, lengths = pad(texts, torch.device("cpu"))
    with torch.no_grad():
        features = target.model(tokens, output_hidden_states=True).hidden_states[-1][:, :-1]
    session = draft.session()
    session.observe(tokens, features, lengths - 1)
    return session, features


def root_of(*tokens: int) -> Root:
    """Roots of a batch, for policies that draw nothing at random."""
    return Root(torch.tensor(tokens), torch.zeros(len(tokens), dtype=torch.long))


def path_of(tree: Tree, row: int, slot: int) -> list[int]:
    """Tokens from under the root to the slot, by walking the parents."""
    path: list[int] = []
    while slot > 0:
        path.insert(0, int(tree.token[row, slot]))
        slot = int(tree.parent[row, slot])
    return path


class TableDraft:
    """A draft whose logits are a function of (row, path): what policies are tested on. Counts its calls."""

    def __init__(self, logits: Callable[[int, tuple[int, ...]], Tensor]):
        self.logits = logits
        self.expanded: list[Tensor] = []

    def expand(self, tree: Tree, slots: Tensor) -> NextTokenDistributions:
        self.expanded.append(slots)
        rows = [
            torch.stack([self.logits(row, tuple(path_of(tree, row, slot))) for slot in chosen])
            for row, chosen in enumerate(slots.tolist())
        ]
        return NextTokenDistributions(torch.stack(rows))


class Candidates(ForkSession):
    """A session that tells these tokens as the target's own."""

    def __init__(self, draft: Draft, first: Tensor):
        self.draft, self.first = draft, first

    def successors(self, count: int) -> Tensor:
        return self.first[:, :count]


def random_table(vocabulary: int, seed: int = 0, spread: float = 2.0) -> Callable[[int, tuple[int, ...]], Tensor]:
    """Random logits, the same for the same (row, path)."""

    @cache
    def logits(row: int, path: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, row, *path)) % 2**31)
        return torch.randn(vocabulary, generator=generator, dtype=torch.float64) * spread

    return logits
