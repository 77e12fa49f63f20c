"""smollm2's draft heads: how each one begins, and its loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.errors import InputError
from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.medusa import MedusaHead
from pipelines.pair.smollm2.losses import (
    Losses,
    eagle3_losses,
    eagle3_states,
    eagle_losses,
    eagle_states,
    medusa_losses,
)
from pipelines.pair.smollm2.shards import Rows, Text

# Tokens that all heads draft from: those that are most frequent in the texts, at a sixth of the LM head's cost.
# Training compares further ones (`rounds.compared_tokens`).
FREQUENT = 8192
MEDUSA_HEADS = 4
FITTED = 400  # texts that an EAGLE-3 head's `fc` begins from


class Given(NamedTuple):
    """Things that a head may begin from. tokens: that it drafts from. texts: that it will learn from. eagle: the
    EAGLE-1 head as it stands, if there is one."""

    target: LlamaForCausalLM
    tokens: Int[Tensor, " v"]
    texts: list[Text]
    eagle: EagleHead | None


@dataclass(frozen=True)
class HeadRecipe:
    """Recipe of a head. part: folder of the pair. about: what it is, for the card. inputs: of the texts, "features" or
    "taps".

    losses: of the head, rows of the target's LM head and a batch. states: the head's outputs at the judged slots, which
    are for the token `ahead` positions after the next one.
    """

    part: str
    about: str
    inputs: str
    make: Callable[[Given], Head]
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


def new_eagle(given: Given) -> EagleHead:
    torch.manual_seed(0)
    return on_target(EagleHead(one_layer(given.target)), given.target)


def new_medusa(given: Given) -> MedusaHead:
    """Return a head on the layer of the EAGLE-1 head as it is now, which stays so; InputError if there is none."""
    torch.manual_seed(0)
    if given.eagle is None:
        raise InputError("there is no EAGLE-1 head, whose layer this one has; train it by --stage eagle")
    head = MedusaHead(one_layer(given.target), MEDUSA_HEADS, layer_of=HEADS["eagle"].part)
    on_target(head, given.target)
    head.load_state_dict(given.eagle.state_dict(), strict=False)  # it has no blocks, which begin as the identity
    head.requires_grad_(False).heads.requires_grad_(True)
    return head


def usual_size(states: Float[Tensor, "m H"]) -> float:
    """Return the mean of the states' root mean squares."""
    return float(states.float().pow(2).mean(-1).sqrt().mean())


def new_eagle3(given: Given) -> Eagle3Head:
    """Return a head of these tokens that begins near the EAGLE-1 head, if there is one; its LM head has the target's
    rows and does not learn."""
    torch.manual_seed(0)
    target, tokens = given.target, given.tokens
    head = Eagle3Head(one_layer(target), len(tokens), target_rows=True)
    head.d2t.copy_(tokens - torch.arange(len(tokens)))
    head.t2d[tokens] = True
    head.take_rows(target.lm_head)
    head.embed_tokens = target.get_input_embeddings()
    with torch.no_grad():
        head.norm.weight.copy_(target.model.norm.weight)
        if given.eagle is not None:
            begin_near(head, given.eagle, given.texts)
    return head


def begin_near(head: Eagle3Head, eagle: EagleHead, texts: list[Text]) -> None:
    """Give an EAGLE-3 head the layer of an EAGLE-1 head, as far as the two forms allow.

    `fc` guesses the post-norm state from the three states (least squares). EAGLE-1's fc(e, f) = A e + B f is put into
    the projections of the attention, which read both side by side, with norms that keep the usual size. What has no
    place: A e in the sum that the MLP reads, and the bias.
    """
    layer, ours, width = eagle.layers[0], head.midlayer, head.config.hidden_size
    some = texts[:FITTED]
    taps, features = (torch.cat([getattr(text, name) for text in some]).float() for name in ("taps", "features"))
    square = taps.T @ taps
    square += 1e-3 * square.diag().mean() * torch.eye(len(square))
    head.fc.weight.copy_(torch.linalg.solve(square, taps.T @ features).T)
    ours.mlp.load_state_dict(layer.mlp.state_dict())
    ours.post_attention_layernorm.load_state_dict(layer.post_attention_layernorm.state_dict())
    ours.self_attn.o_proj.load_state_dict(layer.self_attn.o_proj.state_dict())
    embedded = eagle.embed_tokens(head.tokens)
    sizes = [usual_size(part) for part in (embedded, features)]
    for name in ("q_proj", "k_proj", "v_proj"):
        project = layer.self_attn.get_submodule(name).weight.float()
        parts = [
            size * project @ part for size, part in zip(sizes, eagle.fc.weight.float().split(width, 1), strict=True)
        ]
        ours.self_attn.get_submodule(name).weight.copy_(torch.cat(parts, 1))
    for norm, size in ((ours.input_layernorm, 1.0), (ours.hidden_norm, 1.0), (head.norm, sizes[1])):
        norm.weight.fill_(size)


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
