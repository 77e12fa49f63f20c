"""Losses of draft heads on the target's own texts.

Shapes: B texts, n slots, m judged slots of all texts one after the other (see `c2t.drafting.rows.Rows`), H hidden, v
tokens whose logits are compared.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from c2t.drafting.rows import Rows
from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.medusa import MedusaHead

NOISE = 0.2  # upstream's
# Weight of the cross-entropy; SmoothL1 on the features has 1. With upstream's 0.1 a head that knows the features gains
# half as much agreement in the same time.
ENTROPY = 1.0
DEEPER = 0.8  # a depth's weight in that of the one above: upstream's of EAGLE-3 and of Medusa
LARGE = 4.0  # root mean square of features: SmoothL1 on larger ones would outweigh the cross-entropy
EAGLE_LEVELS = 2  # unrolled steps of EAGLE-1; upstream's is 1, HASS's are 3
LEVELS = 3  # unrolled steps of EAGLE-3; upstream's are 7
CHUNK = 128  # states whose logits are computed together
JUDGED = 0.3  # share of the judged slots whose logits are compared at all depths of Medusa


def noisy(features: Float[Tensor, "B n H"], noise: float) -> Float[Tensor, "B n H"]:
    """Return features with upstream's uniform noise."""
    return features + (torch.rand_like(features) - 0.5) * noise * 512 / features.shape[1]


class Losses(NamedTuple):
    """total: what is minimised. figures: its parts."""

    total: Float[Tensor, ""]
    figures: dict[str, Float[Tensor, ""]]


def eagle_states(head: EagleHead, rows: Rows, noise: float = 0.0, levels: int = 1) -> Iterator[Float[Tensor, "m H"]]:
    """Yield the head's predictions at the judged slots, level by level; deeper levels read those of the level above, as
    in drafting (HASS, harmonized context alignment). The other slots are keys and values only, and do not go through
    the MLP, which is most of the head."""
    layer: Any = head.layers[0]
    chains = Chains(head, layer.self_attn, rows, levels)
    state = noisy(rows.inputs[:, :-1], noise)
    for level in range(levels):
        hidden = head.fc(torch.cat([chains.embedded(level).to(state.dtype), state], -1))
        hidden = (hidden + chains.attended(level, hidden))[rows.judged]
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        yield hidden
        state = chains.deeper(hidden)


def eagle3_states(head: Eagle3Head, rows: Rows, levels: int) -> Iterator[Float[Tensor, "m H"]]:
    """Yield the head's outputs at the judged slots, level by level; deeper levels read those of the level above, as
    in drafting."""
    layer = head.midlayer
    chains = Chains(head, layer.self_attn, rows, levels)
    state = head.fc(rows.inputs[:, :-1])
    for level in range(levels):
        embedded = chains.embedded(level).to(state.dtype)
        read = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(state)], -1)
        hidden = (state + chains.attended(level, read))[rows.judged]
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        yield hidden
        state = chains.deeper(hidden)


class Chains:
    """Inputs of a head's unrolled levels: slot j of level i stands at position j + i, knows token j + i + 1, and sees
    the true slots up to j and its own chain of slots j."""

    def __init__(self, head: Head, attention: Any, rows: Rows, levels: int):
        self.head, self.attention, self.judged = head, attention, rows.judged
        self.ids = F.pad(rows.ids, (0, levels))  # chains run past a text's end, where nothing is judged
        self.slots = torch.arange(rows.judged.shape[1], device=rows.ids.device)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def embedded(self, level: int) -> Float[Tensor, "B n H"]:
        """Return the embeddings of the tokens that the level knows."""
        return self.head.embed_tokens(self.ids[:, self.slots + level + 1])

    def attended(self, level: int, read: Float[Tensor, "B n _"]) -> Float[Tensor, "B n H"]:
        """Return what the attention adds to a level's slots, after the levels before it."""
        attention: Any = self.attention
        query, key, value = (
            project(read).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        positions = (self.slots + level).expand(len(read), -1)
        query, key = apply_rotary_pos_emb(query, key, *self.head.rotation(read, positions))
        self.keys.append(repeat_kv(key, attention.num_key_value_groups))
        self.values.append(repeat_kv(value, attention.num_key_value_groups))
        if level == 0:
            seen = F.scaled_dot_product_attention(query, self.keys[0], self.values[0], is_causal=True)
        else:
            seen = attend(query * attention.scaling, self.keys, self.values)
        return attention.o_proj(seen.transpose(1, 2).flatten(2))

    def deeper(self, hidden: Float[Tensor, "m H"]) -> Float[Tensor, "B n H"]:
        """Return the states that the next level reads, zero where nothing is judged."""
        state = hidden.new_zeros(*self.judged.shape, hidden.shape[-1])
        return state.index_put((self.judged,), hidden)


def attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Float[Tensor, "B h n D"]:
    """Return what each slot sees: the first level's slots up to itself, and its own chain in the levels after it."""
    n = query.shape[2]
    later = torch.ones(n, n, dtype=torch.bool, device=query.device).triu(1)
    scores = (query @ keys[0].mT).masked_fill(later, float("-inf"))
    chain = [(query * key).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.cat([scores, *chain], -1).softmax(-1).to(query.dtype)
    seen = weights[..., :n] @ values[0]
    for index, value in enumerate(values[1:], n):
        seen = seen + weights[..., index : index + 1] * value
    return seen


class SoftCrossEntropy(torch.autograd.Function):
    """Sum of cross-entropies between soft targets and the distributions of states, log sum exp(W h) - h . r, where r is
    the LM head's mean row under a target. Only a few states' logits exist at a time: they stay in the processor's
    cache. A step over 11,500 tokens takes half of the time that it takes with those of all states."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Float[Tensor, "m H"], lm_head: Float[Tensor, "v H"], mean_row: Float[Tensor, "m H"]
    ) -> Float[Tensor, ""]:
        """Return the sum; its gradient is computed along the way."""
        total, gradients = mean_row.new_zeros(()), []
        for states, mean in zip(hidden.split(CHUNK), mean_row.split(CHUNK), strict=True):
            logits = (states @ lm_head.T).float()
            largest, distribution = logits.amax(-1), logits.softmax(-1)
            normaliser = largest - distribution.amax(-1).log()
            total += (normaliser - (states.float() * mean).sum(-1)).sum()
            gradients.append((distribution.to(lm_head.dtype) @ lm_head).float() - mean)
        ctx.save_for_backward(torch.cat(gradients) if gradients else torch.zeros_like(mean_row))
        ctx.dtype = hidden.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Float[Tensor, ""]) -> tuple[Tensor, None, None]:
        """Return the gradient of the states."""
        return (outer[0] * ctx.saved_tensors[0]).to(ctx.dtype), None, None


@torch.no_grad()
def mean_rows(states: Float[Tensor, "m H"], lm_head: Float[Tensor, "v H"]) -> Float[Tensor, "m H"]:
    """Return the mean row of the LM head under the distribution of each of the target's states."""
    rows = [(part @ lm_head.T).float().softmax(-1).to(lm_head.dtype) @ lm_head for part in states.split(CHUNK)]
    return torch.cat(rows).float() if rows else states.float()


def by_depth(
    states: Iterable[Float[Tensor, "m H"]], lm_head: Float[Tensor, "v H"], rows: Rows, chosen: Tensor
) -> Losses:
    """Return the soft cross-entropy between the head's next-token distributions and the target's at the `chosen`
    positions; depth k's guess comes from the state k positions earlier in the same text. states: as the LM head reads
    them."""
    device = lm_head.device.type
    if torch.is_autocast_enabled(device):
        lm_head = lm_head.to(torch.get_autocast_dtype(device))
    index = index_in_text(rows)[chosen]
    true = rows.features[:, 1:][rows.judged][chosen]
    wanted = mean_rows(true.to(lm_head.dtype), lm_head)
    total, figures = wanted.new_zeros(()), {}
    for depth, hidden in enumerate(states):
        valid = index >= depth
        guess = hidden[chosen[valid] - depth].to(lm_head.dtype)
        entropy = SoftCrossEntropy.apply(guess, lm_head, wanted[valid]) / max(1, len(guess))  # of short answers none
        total = total + DEEPER**depth * entropy
        figures[f"cross_entropy_{depth}" if depth else "cross_entropy"] = entropy.detach()
    return Losses(total, figures)


def index_in_text(rows: Rows) -> Int[Tensor, " m"]:
    """Return the number of each judged slot among those of its text."""
    return (rows.judged.cumsum(1) - 1)[rows.judged]


def some_of(count: int, device: torch.device) -> Int[Tensor, " c"]:
    """Return the numbers of a random JUDGED share of so many positions."""
    return torch.randperm(count, device=device)[: math.ceil(JUDGED * count)]


def eagle_losses(head: EagleHead, lm_head: Float[Tensor, "v H"], rows: Rows) -> Losses:
    """Return `feature_losses` of an EAGLE-1 head."""
    return feature_losses(eagle_states(head, rows, NOISE, EAGLE_LEVELS), lm_head, rows)


def feature_losses(levels: Iterable[Float[Tensor, "m H"]], lm_head: Float[Tensor, "v H"], rows: Rows) -> Losses:
    """Return upstream's loss of EAGLE-1, SmoothL1 on the features + ENTROPY x soft cross-entropy of the logits, at
    every unrolled level. Features that are larger than LARGE are compared at that size."""
    states, true = list(levels), rows.features[:, 1:][rows.judged]
    every = torch.arange(len(true), device=true.device)
    compared = by_depth(states, lm_head, rows, every)
    index, regression, figures = index_in_text(rows), true.new_zeros(()), {}
    unit = (true.pow(2).mean().sqrt() / LARGE).clamp(min=1.0)
    for depth, guess in enumerate(states):
        valid = (index >= depth).nonzero()[:, 0]
        apart = F.smooth_l1_loss(guess[valid - depth].float() / unit, true[valid] / unit)
        regression = regression + DEEPER**depth * apart
        figures[f"smooth_l1_{depth}" if depth else "smooth_l1"] = apart.detach()
    return Losses(regression + ENTROPY * compared.total, figures | compared.figures)


def medusa_losses(head: MedusaHead, lm_head: Float[Tensor, "v H"], rows: Rows) -> Losses:
    """Return Medusa's loss, soft cross-entropy at every depth, on a random share of the positions. The layer does not
    learn: it is the EAGLE-1 head's, whose own depth 0 would suffer."""
    with torch.no_grad():
        guess = next(eagle_states(head, rows))
    states = [head.at(guess, depth) for depth in range(len(head.heads) + 1)]
    return by_depth(states, lm_head, rows, some_of(len(guess), guess.device))


def eagle3_losses(head: Eagle3Head, lm_head: Float[Tensor, "v H"], rows: Rows) -> Losses:
    """Return the loss of EAGLE-3's training-time test: soft cross-entropy over the draft's vocabulary at every unrolled
    step, where the next token of the text is in it. (Upstream asks that of the target's most probable token, which
    would cost a pass over the target's whole vocabulary.) All positions are compared: the others would teach nothing,
    since this loss has no part on the states."""
    following = rows.ids[:, 2:][rows.judged]
    nameable = torch.ones_like(following) if head.tokens is None else head.t2d[following]
    chosen = nameable.nonzero()[:, 0]
    return by_depth(map(head.norm, eagle3_states(head, rows, LEVELS)), lm_head, rows, chosen)
