"""Kinds of draft heads that can be trained: how each begins, and its loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig

from c2t.drafting.block_losses import dspark_losses, first_slots, joint_rows
from c2t.drafting.library import Text
from c2t.drafting.losses import (
    Losses,
    eagle3_losses,
    eagle3_states,
    eagle_losses,
    eagle_states,
    medusa_losses,
)
from c2t.drafting.rows import Rows
from c2t.errors import InputError
from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head, Eagle3Variant, default_taps
from c2t.models.drafts.heads import PARTS
from c2t.models.drafts.medusa import MedusaHead
from c2t.models.target.target import Target

MEDUSA_HEADS = 4
FITTED = 400  # texts that an EAGLE-3 head's `fc` begins from
BLOCK, BLOCK_LAYERS, MARKOV_RANK = 7, 2, 64  # of a DSpark head: slots of a block; its size
# Share of the usual size of the states that a DSpark head's begin with: total variation has hardly a slope where a
# distribution is sure of a wrong token. At full size SmolLM2's began with a cross-entropy of 38.
FLAT = 0.3
HEAD_SIZE, WIDEST = 64, 3  # of an attention head; most of the MLP's size in that of the hidden states
TRAINED_EAGLE3 = (Eagle3Variant(), True)  # form of an EAGLE-3 head, and whether its LM head has the target's rows
SMALL = 4.0  # root mean square of features; a head for larger ones begins with larger outputs


class Given(NamedTuple):
    """Things that a head may begin from. embedding: the target's, as heads read it. tokens: that it drafts from. texts:
    that it will learn from. eagle: the EAGLE-1 head next to it, if there is one."""

    target: Target
    embedding: nn.Embedding
    tokens: Int[Tensor, " v"]
    texts: list[Text]
    eagle: EagleHead | None


@dataclass(frozen=True)
class HeadKind:
    """Kind of a head. part: its folder next to others. type: its class. taps: it reads tapped layers of the target, not
    its last features.

    losses: of the head, the `rows` of compared tokens and a batch. states: the head's outputs at the judged slots,
    which are for the token `ahead` positions after the next one. rows: what gives logits with these states; by default
    the target's LM head.

    frozen: beginnings of the names of weights that it does not learn, besides the embedding. tables: of those with a
    row for each token, or a single one, which are no matrices for Muon. own_tokens: it has a vocabulary of its own,
    which is chosen once. answers: only they teach, no questions. every: one of so many positions is judged for the
    agreement. trainable: False for forms that cannot be trained further.
    """

    part: str
    type: type[Head]
    taps: bool
    make: Callable[[Given], Head]
    losses: Callable[[Head, Float[Tensor, "v D"], Rows], Losses]
    states: Callable[[Head, Rows], Float[Tensor, "m D"]]
    rows: Callable[[Head, Float[Tensor, "v H"], Int[Tensor, " v"]], Float[Tensor, "v D"]] = lambda head, rows, _: rows
    frozen: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    ahead: int = 0
    own_tokens: bool = False
    answers: bool = False
    every: int = 1
    trainable: Callable[[Head], bool] = lambda head: head.num_layers == 1

    def learned(self, head: Head) -> dict[str, nn.Parameter]:
        """Return the weights that a head of this kind learns, and let it learn no others."""
        frozen = ("embed_tokens", *self.frozen)
        for name, weight in head.named_parameters():
            weight.requires_grad_(not name.startswith(frozen))
        return {name: weight for name, weight in head.named_parameters() if weight.requires_grad}


def one_layer(target: Target) -> LlamaConfig:
    """Return the config of a Llama layer as wide as a target of any family, with attention heads of the usual size."""
    config, (vocabulary, width) = target.config, target.embed_tokens.weight.shape
    size = math.gcd(width, HEAD_SIZE)
    heads = width // size
    sizes = (getattr(config, name, None) for name in ("intermediate_size", "n_inner"))
    inner = min(next(filter(None, sizes), 4 * width), WIDEST * width)  # GPT-2's is 4 * width where none is named
    return LlamaConfig(
        hidden_size=width,
        intermediate_size=max(HEAD_SIZE, inner // HEAD_SIZE * HEAD_SIZE),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=max(keys for keys in range(1, max(1, heads // 3) + 1) if heads % keys == 0),
        head_dim=size,
        vocab_size=vocabulary,
        max_position_embeddings=target.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        rms_norm_eps=1e-6,
        pad_token_id=None,
    )


def new_eagle(given: Given) -> EagleHead:
    """Return a head that begins by passing half of the feature on."""
    torch.manual_seed(0)
    head, width = EagleHead(one_layer(given.target)), given.embedding.weight.shape[1]
    states = usual_size(torch.cat([text.features for text in given.texts[:FITTED]]))
    embedded = usual_size(given.embedding.weight[given.tokens])
    with torch.no_grad():
        head.fc.bias.zero_()
        if states > SMALL * embedded:  # both then have a part in what the layer reads
            head.fc.weight[:, :width] *= states / embedded
        head.fc.weight[:, width:] += 0.5 * torch.eye(width)
        if states > SMALL:
            layer: Any = head.layers[0]
            for part in (layer.mlp.down_proj, layer.self_attn.o_proj):
                part.weight *= states / 2
    head.embed_tokens = given.embedding
    return head


def new_medusa(given: Given) -> MedusaHead:
    """Return a head on the layer of the EAGLE-1 head as it is now, which stays so; InputError if there is none."""
    torch.manual_seed(0)
    if given.eagle is None:
        raise InputError("there is no EAGLE-1 head, whose layer this one has: train it first, with --kind eagle")
    head = MedusaHead(given.eagle.config, MEDUSA_HEADS, layer_of=PARTS["eagle"])
    head.load_state_dict(given.eagle.state_dict(), strict=False)  # it has no blocks, which begin as the identity
    head.embed_tokens = given.embedding
    return head


def usual_size(states: Float[Tensor, "m H"]) -> float:
    """Return the mean of the states' root mean squares."""
    return float(states.float().pow(2).mean(-1).sqrt().mean())


def new_eagle3(given: Given) -> Eagle3Head:
    """Return a head of these tokens that begins near the EAGLE-1 head, if there is one; its LM head has the target's
    rows and does not learn."""
    torch.manual_seed(0)
    target, tokens = given.target, given.tokens.cpu()
    config = one_layer(target) if given.eagle is None else given.eagle.config
    head = Eagle3Head(config, len(tokens), target_rows=True)
    if hasattr(head, "d2t"):
        head.d2t.copy_(tokens - torch.arange(len(tokens)))
        head.t2d[tokens] = True
    head.take_rows(target.lm_head)
    head.lm_head.float()
    head.embed_tokens = given.embedding
    with torch.no_grad():
        head.norm.weight.fill_(usual_size(torch.cat([text.features for text in given.texts[:FITTED]])))
        if given.eagle is not None:
            begin_near(head, given.eagle, given.texts)
    return head


def begin_near(head: Eagle3Head, eagle: EagleHead, texts: list[Text]) -> None:
    """Give an EAGLE-3 head the layer of an EAGLE-1 head, as far as the two forms allow.

    `fc` guesses the post-norm state from the three states (least squares). EAGLE-1's fc(e, f) = A e + B f is put into
    the projections of the attention, which read both side by side, with norms that keep the usual size. What has no
    place: A e in the sum that the MLP reads, and the bias.
    """
    layer: Any = eagle.layers[0]
    ours, width = head.midlayer, head.config.hidden_size
    some = texts[:FITTED]
    taps, features = (torch.cat([getattr(text, name) for text in some]).float() for name in ("inputs", "features"))
    square = taps.T @ taps
    square += 1e-3 * square.diag().mean() * torch.eye(len(square))
    head.fc.weight.copy_(torch.linalg.solve(square, taps.T @ features).T)
    ours.mlp.load_state_dict(layer.mlp.state_dict())
    ours.post_attention_layernorm.load_state_dict(layer.post_attention_layernorm.state_dict())
    ours.self_attn.o_proj.load_state_dict(layer.self_attn.o_proj.state_dict())
    embedded = eagle.embed_tokens.weight if head.tokens is None else eagle.embed_tokens.weight[head.tokens]
    sizes = [usual_size(part) for part in (embedded, features)]
    for name in ("q_proj", "k_proj", "v_proj"):
        project = layer.self_attn.get_submodule(name).weight.float()
        parts = [
            size * project @ part for size, part in zip(sizes, eagle.fc.weight.float().split(width, 1), strict=True)
        ]
        ours.self_attn.get_submodule(name).weight.copy_(torch.cat(parts, 1))
    for norm, size in ((ours.input_layernorm, 1.0), (ours.hidden_norm, 1.0), (head.norm, sizes[1])):
        norm.weight.fill_(size)


def new_dspark(given: Given) -> BlockHead:
    """Return a DSpark head whose Markov bias is 0 yet, and whose masks are a token that the texts do not hold."""
    torch.manual_seed(0)
    target = given.target
    config = one_layer(target)
    config.num_hidden_layers = BLOCK_LAYERS
    head = BlockHead(config, dspark_form(target.num_layers, unused_token(given.texts, config.vocab_size)))
    head.embed_tokens = given.embedding
    with torch.no_grad():
        size = usual_size(torch.cat([text.features for text in given.texts[:FITTED]]))
        head.norm.weight.fill_(FLAT * size)
        nn.init.normal_(head.markov_head.markov_w1.weight, std=MARKOV_RANK**-0.5)
        for weight in (head.markov_head.markov_w2.weight, *head.confidence_head.parameters()):
            nn.init.zeros_(weight)
    return head


def dspark_form(target_layers: int, mask: int) -> BlockForm:
    """Return the form of the DSpark heads that are trained here."""
    layers = tuple(tap - 1 for tap in default_taps(target_layers))
    markov: dict[str, Any] = {"markov_rank": MARKOV_RANK, "confidence": True, "confidence_reads_token": True}
    return BlockForm(BLOCK, mask, layers, from_anchor=True, **markov, target_layers=target_layers)


def widened(head: BlockHead) -> BlockHead:
    """Return a stored head with the Markov head's rows of all tokens, zeros for those that it does not draft."""
    if head.markov_head is None or head.lm_head is not None:
        return head
    wide = BlockHead(head.config, replace(head.form, draft_vocab=None, own_lm_head=False)).to(head.fc.weight.device)
    state, rows = head.state_dict(), torch.zeros_like(wide.markov_head.markov_w2.weight)
    rows[slice(None) if head.tokens is None else head.tokens] = head.markov_head.markov_w2.weight
    wide.load_state_dict(state | {"markov_head.markov_w2.weight": rows})
    return wide


def unused_token(texts: list[Text], vocabulary: int) -> int:
    """Return the first token that is not in the texts, or the rarest one."""
    return int(torch.cat([text.ids for text in texts]).bincount(minlength=vocabulary).argmin())


def first_block(head: MedusaHead, rows: Rows) -> Float[Tensor, "m H"]:
    """Return the outputs of a Medusa-style head's first block."""
    return head.at(next(eagle_states(head, rows)), 1)


def is_trained_dspark(head: Any) -> bool:
    """Return True for a block drafter of the form that is trained here, of any size; it reads the default layers."""
    form: BlockForm = head.form
    sizes = {name: getattr(form, name) for name in ("size", "markov_rank")}
    return form.target_layers is not None and form == replace(dspark_form(form.target_layers, form.mask_token), **sizes)


KINDS = {
    "eagle": HeadKind(
        PARTS["eagle"], EagleHead, False, new_eagle, eagle_losses, lambda head, rows: next(eagle_states(head, rows))
    ),
    "eagle3": HeadKind(
        PARTS["eagle3"],
        Eagle3Head,
        True,
        new_eagle3,
        eagle3_losses,
        lambda head, rows: next(eagle3_states(head, rows, 1)),
        frozen=("lm_head",),
        own_tokens=True,
        trainable=lambda head: head.num_layers == 1 and (head.variant, head.shares_lm_head) == TRAINED_EAGLE3,
    ),
    "dspark": HeadKind(
        PARTS["block"],
        BlockHead,
        True,
        new_dspark,
        dspark_losses,
        first_slots,
        rows=joint_rows,
        tables=("markov_head", "confidence_head"),
        answers=True,
        every=4,  # each of them takes a block
        trainable=is_trained_dspark,
    ),
    "medusa": HeadKind(
        PARTS["medusa"],
        MedusaHead,
        False,
        new_medusa,
        medusa_losses,
        first_block,
        frozen=("fc", "layers"),
        ahead=1,
    ),
}
