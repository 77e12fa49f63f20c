"""An independent language model with the target's tokenizer as draft (the setting of EntropyTree, MCSD+ and DySpec).

Models of one tokenizer may have different numbers of rows: vocabularies are padded, and each size of a family may be
padded to another multiple.
"""

from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from c2t.caches.ragged import Ragged
from c2t.errors import InputError
from c2t.models.drafts.published_medusa import is_published
from c2t.models.drafts.session import BaseDraft, DraftSession
from c2t.models.loading.load_target import load_target, read_tokenizer
from c2t.models.loading.registry import DRAFTS, DraftKind, DraftRequest
from c2t.models.target.target import Target
from c2t.protocols import DraftVocabulary

PADDING = 0.01  # largest share of a vocabulary; models that differ by more are taken to have different tokenizers


class DraftLM(BaseDraft):
    """Draft made of any causal LM that `Target` can run; it ignores the target's features. size: rows of the target's
    vocabulary, None for as many as the model has. Rows beyond them are never drafted, and the target's rows beyond the
    model's have probability 0."""

    def __init__(self, model: Target, size: int | None = None):
        self.model, self.vocabulary, rows = model, None, model.config.vocab_size
        self.size = rows if size is None else size
        if rows < self.size:
            self.vocabulary = DraftVocabulary(torch.arange(rows, device=model.device), self.size)

    @property
    def language_models(self) -> tuple[PreTrainedModel, ...]:
        return (self.model.model,)

    @property
    def hidden_size(self) -> int:
        return self.model.config.hidden_size

    def session(self) -> "DraftLMSession":
        """Return a new session for one generation."""
        return DraftLMSession(self)


class DraftLMSession(DraftSession):
    """Draft session whose cache holds the committed tokens, the root included. On a CPU the model runs in its packed
    form, if it has one."""

    def __init__(self, draft: DraftLM):
        super().__init__(draft.model.num_layers, draft.vocabulary)
        self.draft, self.packed = draft, draft.model.packed

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`; the first call also reads the prompt's first token."""
        if self.cache.lengths is None:  # the prompt's first token is not read yet
            self._observe(tokens, features, count + 1)
        else:
            self._observe(tokens[:, 1:], features, count)

    def _forward(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor, rows: Ragged) -> Tensor:
        if self.vocabulary is not None:  # a padding token of the target's in a text stands for the model's last one
            tokens = tokens.clamp(max=len(self.vocabulary.tokens) - 1)
        if self.packed is not None:
            return self.packed.run_padded(tokens, positions, mask, self.cache, rows)
        return self.draft.model.forward(tokens, positions, mask, self.cache)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.draft.model.logits(hidden)[..., : self.draft.size].contiguous()


def check_vocabulary(draft: Target, target: Target, where: str | Path) -> None:
    """Raise InputError if the models' numbers of tokens differ by more than padding, so that they cannot have one
    tokenizer; for models whose tokenizers are not known."""
    mine, theirs = draft.config.vocab_size, target.config.vocab_size
    if abs(mine - theirs) > PADDING * max(mine, theirs):
        raise InputError(f"{where}: the draft has {mine} tokens, the target {theirs}; take a draft with its tokenizer")


def check_tokens(draft: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase, where: str | Path) -> None:
    """Raise InputError if an id stands for different tokens, other than those that were added to a vocabulary: these
    differ between a base model and those trained further."""
    mine, theirs = _words(draft), _words(target)
    for number in mine.keys() & theirs.keys():
        if mine[number] != theirs[number]:
            raise InputError(
                f"{where}: token {number} is {mine[number]!r} to the draft and {theirs[number]!r} to the target; take "
                "a draft with its tokenizer"
            )


def _words(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    added = tokenizer.get_added_vocab()
    return {number: word for word, number in tokenizer.get_vocab().items() if word not in added}


def is_language_model(folder: Path) -> bool:
    """Return True for the folder of a language model, which has its own tokenizer; the folder of Medusa's published
    heads has the target's."""
    return (folder / "tokenizer_config.json").exists() and not is_published(folder)


def _load(folder: Path, request: DraftRequest) -> DraftLM:
    """Load a model whose tokens are the target's: by its own tokenizer, or if that cannot be read, by their number."""
    if request.taps is not None or request.anchor is not None:
        raise InputError(f"{folder}: a language model drafts without taps; leave +taps= and +anchor= out")
    target, trust = request.target, request.trust_remote_code
    model = load_target(str(folder), request.device, request.dtype, request.device_map, trust)
    try:
        tokenizer = request.tokenizer and read_tokenizer(str(folder), trust)
    except InputError:
        tokenizer = None
    if tokenizer is None:
        check_vocabulary(model, target, folder)
    else:
        check_tokens(tokenizer, request.tokenizer, folder)
    return DraftLM(model, target.config.vocab_size)


DRAFTS["lm"] = DraftKind(
    _load,
    "draft_lm",
    holds=is_language_model,
    language_model=True,
    summary="A smaller language model with the target's tokens.",
)
