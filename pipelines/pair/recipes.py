"""The sizes and trainings of the embedded pairs: `tiny`, a smaller one of its family, and one of another family.

The last two are for questions of transfer (C2T, table 2): they are built on demand and are not in the repository.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.medusa import MedusaHead
from pipelines.pair.corpus import QUOTA
from pipelines.pair.train_head import medusa_loss, upstream_loss

ROOT = Path(__file__).resolve().parents[2]
SEPARATOR = 0
COMMON: dict[str, Any] = {
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
    "bos_token_id": SEPARATOR, "eos_token_id": SEPARATOR, "pad_token_id": SEPARATOR,
}  # fmt: skip
WIDE = {"hidden_size": 256, "intermediate_size": 576, "num_attention_heads": 4, "num_key_value_heads": 2}
NARROW = {"hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 4, "num_key_value_heads": 2}
MIDDLE = {"hidden_size": 160, "intermediate_size": 384, "num_attention_heads": 5, "num_key_value_heads": 1}
MEDUSA_HEADS = 2  # beyond the layer's own depth: as many as the repository has room for


@dataclass(frozen=True)
class HeadRecipe:
    """Recipe of a draft head."""

    make: Callable[[LlamaConfig], Head]
    loss: Callable[..., torch.Tensor]
    learning_rate: float
    steps: int
    start: str | None = None  # the head whose trained weights it starts from


HEADS = {
    "draft": HeadRecipe(EagleHead, upstream_loss, 5e-3, 9000),
    "draft_medusa": HeadRecipe(
        lambda c: MedusaHead(c, MEDUSA_HEADS, layer_of="draft"), medusa_loss, 2e-3, 1200, start="draft"
    ),
}


@dataclass(frozen=True)
class PairRecipe:
    """Recipe of a pair. minutes: time limit of a training stage where the command line gives none; schedules fit into
    it."""

    name: str
    target: PretrainedConfig
    head: LlamaConfig
    heads: tuple[str, ...]
    draft_lm: LlamaConfig | None = None
    domains: tuple[str, ...] = tuple(QUOTA)
    text_rows: int = 2304
    minutes: dict[str, float] = field(default_factory=dict)
    embedded: bool = False  # committed; the others go to folders that git ignores

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.target.vocab_size

    @property
    def out(self) -> Path:
        """Folder of the finished pair."""
        checkpoints = ROOT / "checkpoints"
        return checkpoints / self.name if self.embedded else checkpoints / "local" / self.name

    @property
    def build(self) -> Path:
        """Folder of intermediate state."""
        return ROOT / "build" / self.name


def llama(layers: int, tied: bool = False, **sizes: int) -> LlamaConfig:
    """Return the config of a Llama model with the pairs' common settings."""
    return LlamaConfig(**COMMON, **sizes, vocab_size=8192, num_hidden_layers=layers, tie_word_embeddings=tied)


PAIRS = {
    recipe.name: recipe
    for recipe in (
        PairRecipe(
            "tiny",
            target=llama(8, head_dim=64, **WIDE),
            head=llama(1, head_dim=64, **WIDE),
            heads=tuple(HEADS),
            draft_lm=llama(
                2, tied=True, head_dim=64, hidden_size=128, intermediate_size=288, num_attention_heads=2,
                num_key_value_heads=2,
            ),
            embedded=True,
        ),
        PairRecipe(  # a third of the parameters, the same data and tokenizer
            "tiny-small",
            target=llama(6, **NARROW),
            head=llama(1, **NARROW),
            heads=("draft",),
            text_rows=768,
            minutes={"target": 10, "draft": 5},
        ),
        PairRecipe(  # another family, tokenizer and data mix
            "tiny-qwen",
            target=Qwen2Config(
                **COMMON, **MIDDLE, vocab_size=4096, num_hidden_layers=6, tie_word_embeddings=False
            ),
            head=LlamaConfig(**COMMON, **MIDDLE, vocab_size=4096, num_hidden_layers=1, tie_word_embeddings=False),
            heads=("draft",),
            domains=("prose", "doctest"),
            text_rows=768,
            minutes={"target": 10, "draft": 5},
        ),
    )
}  # fmt: skip
