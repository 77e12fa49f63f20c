"""Losses of smollm2's heads on the target's own texts.

Shapes: B texts, n slots, m judged slots of all texts one after the other (see `shards.Rows`), H hidden, v tokens whose
logits are compared.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.medusa import MedusaHead
from pipelines.pair.smollm2.shards import Rows
from pipelines.pair.train_head import noisy

NOISE = 0.2  # upstream's
# Weight of the cross-entropy; SmoothL1 on the features has 1. With upstream's 0.1 a head that knows the features gains
# half as much agreement in the same time.
ENTROPY = 1.0
DEEPER = 0.8  # a depth's weight in that of the one above: upstream's of EAGLE-3 and of Medusa
EAGLE_LEVELS = 2  # unrolled steps of EAGLE-1; upstream's is 1, HASS's are 3
LEVELS = 3  # unrolled steps of EAGLE-3; upstream's are 7
JUDGED = 0.3  # share of the judged slots whose logits are compared at all depths of Medusa


class Losses(NamedTuple):
    """total: what is minimised. figures: its parts, and the agreement: share of equal most probable tokens."""

    total: Float[Tensor, ""]
    figures: dict[str, Float[Tensor, ""]]


def eagle_states(head: EagleHead, rows: Rows, noise: float = 0.0, levels: int = 1) -> Iterator[Float[Tensor, "m H"]]:
    """Yield the head's predictions at the judged slots, level by level; deeper levels read those of the level above, as
    in drafting (HASS, harmonized context alignment). The other slots are keys and values only, and do not go through
    the MLP, which is most of the head."""
    layer = head.layers[0]
    chains = Chains(head, layer.self_attn, rows, levels)
    state = noisy(rows.inputs[:, :-1], noise)
    for level in range(levels):
        hidden = head.fc(torch.cat([chains.embedded(level), state], -1))
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

    def __init__(self, head: Head, attention: nn.Module, rows: Rows, levels: int):
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
        attention = self.attention
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


def by_depth(
    states: Iterable[Float[Tensor, "m H"]],
    logits_of: Callable[[Tensor], Float[Tensor, "c v"]],
    lm_head: Float[Tensor, "v H"],
    rows: Rows,
    chosen: Tensor,
) -> Losses:
    """Return the soft cross-entropy between the head's next-token distributions and the target's at the `chosen`
    positions, and the agreement; depth k's guess comes from the state k positions earlier in the same text."""
    index = index_in_text(rows)[chosen]
    with torch.no_grad():
        wanted = (rows.features[:, 1:][rows.judged][chosen] @ lm_head.T).float().softmax(-1)
    total, figures = wanted.new_zeros(()), {}
    for depth, hidden in enumerate(states):
        valid = index >= depth
        logits = logits_of(hidden[chosen[valid] - depth]).float()
        count = max(1, len(logits))  # of short answers valid may be none
        entropy = F.cross_entropy(logits, wanted[valid], reduction="sum") / count
        total = total + DEEPER**depth * entropy
        suffix = f"_{depth}" if depth else ""
        figures[f"cross_entropy{suffix}"] = entropy.detach()
        figures[f"agreement{suffix}"] = (logits.argmax(-1) == wanted[valid].argmax(-1)).sum() / count
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
    every unrolled level."""
    states, true = list(levels), rows.features[:, 1:][rows.judged]
    every = torch.arange(len(true), device=true.device)
    compared = by_depth(states, lambda hidden: hidden @ lm_head.T, lm_head, rows, every)
    index, regression, figures = index_in_text(rows), true.new_zeros(()), {}
    for depth, guess in enumerate(states):
        valid = (index >= depth).nonzero()[:, 0]
        apart = F.smooth_l1_loss(guess[valid - depth].float(), true[valid])
        regression = regression + DEEPER**depth * apart
        figures[f"smooth_l1_{depth}" if depth else "smooth_l1"] = apart.detach()
    return Losses(regression + ENTROPY * compared.total, figures | compared.figures)


def medusa_losses(head: MedusaHead, lm_head: Float[Tensor, "v H"], rows: Rows) -> Losses:
    """Return Medusa's loss, soft cross-entropy at every depth, on a random share of the positions. The layer does not
    learn: it is the EAGLE-1 head's, whose own depth 0 would suffer."""
    with torch.no_grad():
        guess = next(eagle_states(head, rows))
    states = [head.at(guess, depth) for depth in range(len(head.heads) + 1)]
    return by_depth(states, lambda hidden: hidden @ lm_head.T, lm_head, rows, some_of(len(guess), guess.device))


def eagle3_losses(head: Eagle3Head, lm_head: Float[Tensor, "v H"], rows: Rows) -> Losses:
    """Return the loss of EAGLE-3's training-time test: soft cross-entropy over the draft's vocabulary at every unrolled
    step, where the next token of the text is in it. (Upstream asks that of the target's most probable token, which
    would cost a pass over the target's whole vocabulary.) All positions are compared: the others would teach nothing,
    since this loss has no part on the states."""
    chosen = head.t2d[rows.ids[:, 2:][rows.judged]].nonzero()[:, 0]
    states = eagle3_states(head, rows, LEVELS)
    return by_depth(states, lambda hidden: head.lm_head(head.norm(hidden)), lm_head, rows, chosen)
