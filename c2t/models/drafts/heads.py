"""Drafts made of a head: EAGLE heads, MTP layers, Medusa-style and published Medusa heads, block drafters."""

from pathlib import Path

from torch import nn

from c2t.errors import InputError
from c2t.models.drafts.block import BlockHead
from c2t.models.drafts.block_draft import BlockDraft
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.drafts.medusa import MedusaDraft, MedusaHead
from c2t.models.drafts.published_medusa import PublishedMedusaDraft, is_published, load_heads
from c2t.models.drafts.session import BaseDraft
from c2t.models.loading import eagle_checkpoint
from c2t.models.loading.eagle_checkpoint import load_head
from c2t.models.loading.registry import DRAFTS, DraftKind, DraftRequest
from c2t.models.target.offloaded import check_in_memory
from c2t.models.target.target import Target

PARTS = {
    "eagle": "draft",
    "distilled": "draft_distilled",
    "eagle3": "draft_eagle3",
    "medusa": "draft_medusa",
    "block": "draft_block",
    "mtp": "draft_mtp",
}

SUMMARIES = {
    "eagle": "EAGLE-1 or EAGLE-2: one layer over the target's last hidden states.",
    "distilled": "A second EAGLE head of a pair, distilled from its target.",
    "eagle3": "EAGLE-3: one layer over hidden states of three layers of the target.",
    "medusa": "Medusa: a head for each of the next tokens, which do not see each other.",
    "block": "A block drafter: all of the next tokens in one forward.",
    "mtp": "A layer for multi-token prediction, which comes with the target.",
}


def embedding_of(target: Target) -> nn.Embedding:
    """Return the target's embedding as heads read it: its rows alone, which some families (Gemma) scale for
    themselves."""
    embedding = target.embed_tokens
    if type(embedding).forward is nn.Embedding.forward:
        return embedding
    return nn.Embedding.from_pretrained(embedding.weight, freeze=not embedding.weight.requires_grad)


def load(folder: Path, request: DraftRequest) -> BaseDraft:
    """Load a head and tap the target's layers that it reads; InputError for another target's head."""
    target, taps = request.target, request.taps
    check_in_memory(target.embed_tokens, "embedding")
    if is_published(folder):
        if taps is not None or request.anchor is not None:
            raise InputError(f"{folder}: Medusa's heads read the last layer; leave +taps= and +anchor= out")
        target.tap(())
        return PublishedMedusaDraft(load_heads(folder, embedding_of(target)), target.lm_head)
    learns = target.embed_tokens.weight.requires_grad
    head = load_head(folder, embedding_of(target), target.lm_head, taps, request.anchor).requires_grad_(False)
    target.embed_tokens.requires_grad_(learns)  # the head shares it, but it is the target's
    target.tap(head.taps(target.num_layers))
    if isinstance(head, BlockHead):
        return BlockDraft(head, target.lm_head)
    if isinstance(head, MedusaHead):
        return MedusaDraft(head, target.lm_head, request.rounded)
    return EagleDraft(head, target.lm_head, request.rounded)


def has_eagle_layer(folder: Path) -> bool:
    """Return True for the folder of a head on an EAGLE layer made of Llama's."""
    return not is_published(folder) and eagle_checkpoint.has_eagle_layer(folder)


def summary_of(folder: Path) -> str:
    """Return what the head in a folder is and reads, in one line; InputError for one that cannot be read."""
    if is_published(folder):
        return "Medusa, as published, reads the target's last state"
    return eagle_checkpoint.summary_of(folder)


for _name, _part in PARTS.items():
    DRAFTS[_name] = DraftKind(load, _part, eagle_layer=has_eagle_layer, trained=True, summary=SUMMARIES[_name])
