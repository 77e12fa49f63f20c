"""smollm2's draft heads: how each one begins and what it learns by."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.errors import InputError
from c2t.models.eagle import EagleHead, Head
from c2t.models.eagle3 import Eagle3Head
from c2t.models.eagle_checkpoint import save_head
from c2t.models.medusa import MedusaHead
from pipelines.pair.smollm2.losses import (
    Losses,
    eagle3_losses,
    eagle3_states,
    eagle_losses,
    eagle_states,
    medusa_losses,
)
from pipelines.pair.smollm2.shards import Rows

# Tokens that all heads draft from, and over which their logits are compared: those that are most frequent in the texts,
# at a sixth of the cost, which would be most of a step's.
FREQUENT = 8192
MEDUSA_HEADS = 4


@dataclass(frozen=True)
class HeadRecipe:
    """Recipe of a head. part: folder of the pair. about: what it is, for the card. inputs: of the texts, "features" or
    "taps". make: from the target, the frequent tokens and the folder of the other heads' checkpoints.

    losses: of the head, rows of the target's LM head and a batch. states: the head's outputs at the judged slots, which
    are for the token `ahead` places behind the next one.
    """

    part: str
    about: str
    inputs: str
    make: Callable[[LlamaForCausalLM, Int[Tensor, " v"], Path], Head]
    losses: Callable[[Head, Float[Tensor, "v H"], Rows], Losses]
    states: Callable[[Head, Rows], Float[Tensor, "m H"]]
    ahead: int = 0


def one_layer(target: LlamaForCausalLM) -> LlamaConfig:
    return LlamaConfig(**target.config.to_dict() | {"num_hidden_layers": 1})


def on_target(head: EagleHead, target: LlamaForCausalLM) -> EagleHead:
    """Give a head the target's embedding, and let it begin by passing half of the feature on."""
    nn.init.zeros_(head.fc.bias)
    with torch.no_grad():
        head.fc.weight[:, target.config.hidden_size :] += 0.5 * torch.eye(target.config.hidden_size)
    head.embed_tokens = target.get_input_embeddings()
    return head


def new_eagle(target: LlamaForCausalLM, tokens: Int[Tensor, " v"], work: Path) -> EagleHead:
    torch.manual_seed(0)
    return on_target(EagleHead(one_layer(target)), target)


def new_medusa(target: LlamaForCausalLM, tokens: Int[Tensor, " v"], work: Path) -> MedusaHead:
    """Return a head on the layer of the EAGLE-1 head as it is now, which stays so; InputError if there is none."""
    torch.manual_seed(0)
    part = HEADS["eagle"].part
    head = MedusaHead(one_layer(target), MEDUSA_HEADS, layer_of=part)
    on_target(head, target)
    trained = work / part / "state.pt"
    if not trained.exists():
        raise InputError(f"{trained} is missing: train the EAGLE-1 head, whose layer this one has, by --stage eagle")
    state = torch.load(trained, map_location="cpu", weights_only=True)["model"]
    head.load_state_dict(state, strict=False)  # it has no blocks, which begin as the identity
    head.requires_grad_(False).heads.requires_grad_(True)
    return head


def new_eagle3(target: LlamaForCausalLM, tokens: Int[Tensor, " v"], work: Path) -> Eagle3Head:
    """Return a head with these tokens, whose LM head and last norm begin as the target's; the LM head stays so."""
    torch.manual_seed(0)
    head = Eagle3Head(one_layer(target), len(tokens), target_rows=True)
    head.d2t.copy_(tokens - torch.arange(len(tokens)))
    head.t2d[tokens] = True
    head.take_rows(target.lm_head)
    with torch.no_grad():
        head.norm.weight.copy_(target.model.norm.weight)
    head.embed_tokens = target.get_input_embeddings()
    return head


def save_draft(head: Head, folder: Path, tokens: Int[Tensor, " v"]) -> None:
    """Save in bf16 and without the embedding, which is the target's; it drafts from these tokens."""
    stored = copy.deepcopy(head).cpu()
    stored.embed_tokens = None
    if not isinstance(stored, Eagle3Head):  # which has them in a place of its own
        stored.tokens = tokens
    save_head(stored.to(torch.bfloat16), folder)


HEADS = {
    "eagle": HeadRecipe(
        "draft",
        "EAGLE-1/2 head: one layer like the target's",
        "features",
        new_eagle,
        eagle_losses,
        lambda head, rows: next(eagle_states(head, rows)),
    ),
    "eagle3": HeadRecipe(
        "draft_eagle3",
        f"EAGLE-3 head on layers 2, 15 and 27; its {FREQUENT:,} tokens are the most frequent ones of the texts, its LM "
        "head is made of the target's rows",
        "taps",
        new_eagle3,
        eagle3_losses,
        lambda head, rows: next(eagle3_states(head, rows, 1)),
    ),
    "medusa": HeadRecipe(
        "draft_medusa",
        f"Medusa-style parallel head: {MEDUSA_HEADS} residual blocks on the layer of `draft`, one for each next token",
        "features",
        new_medusa,
        medusa_losses,
        lambda head, rows: head.at(next(eagle_states(head, rows)), 1),
        ahead=1,
    ),
}
