"""A block drafter's forward as its formats say it, in float64: token by token, head by head, without a cache."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from c2t.models.drafts.block import BlockHead


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotate the two halves of a head's vector, as RoPE does."""
    half = len(x) // 2
    angle = position * theta ** (-torch.arange(half).double() / half)
    first, second = x[:half], x[half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()])


def sees(window: int | None, causal: bool, start: int, place: int, stop: int) -> list[int]:
    """Positions that a layer lets a slot of the block see, which begins at `start`."""
    own = start + place
    context = [position for position in range(start) if window is None or position > own - window]
    return context + [position for position in range(start, stop) if not causal or position <= own]


def block_states(head: BlockHead, states: Tensor, root: int) -> Tensor:
    """States of all slots of the block that follows a text with these states of the target."""
    return normed(unnormed(head, states, root), head.norm.weight.double(), head.config.rms_norm_eps)


def unnormed(head: BlockHead, states: Tensor, root: int) -> Tensor:
    """Those states before the last norm."""
    config, weights = head.config, {name: weight.double() for name, weight in head.state_dict().items()}
    eps, theta, dim = config.rms_norm_eps, config.rope_parameters["rope_theta"], config.head_dim
    context = normed(states.double() @ weights["fc.weight"].T, weights["hidden_norm.weight"], eps)
    start, layer_masks = len(states), head.form.layer_masks or [(None, False)] * config.num_hidden_layers
    hidden = head.embed_tokens.weight[[root, *[head.form.mask_token] * (head.size - 1)]].double()
    if head.form.dflash2:
        hidden = hidden * head.form.dflash2.embedding_scale
    groups = config.num_attention_heads // config.num_key_value_heads
    for number in range(config.num_hidden_layers):
        layer = {
            name.removeprefix(f"layers.{number}."): weight
            for name, weight in weights.items()
            if name.startswith(f"layers.{number}.")
        }
        query_rows, key_rows, value_rows = (layer[f"self_attn.{part}_proj.weight"] for part in "qkv")
        x = plain = normed(hidden, layer["input_layernorm.weight"], eps)
        if head.form.dflash2:
            x = convolved(plain, plain, 0, "attention_conv", layer, head.form.dflash2.group)
        attended = torch.zeros(head.size, config.num_attention_heads * dim).double()
        for each in range(config.num_attention_heads):
            own, shared = slice(each * dim, (each + 1) * dim), slice(each // groups * dim, (each // groups + 1) * dim)
            read = torch.cat([context, x])
            keys = normed(read @ key_rows[shared].T, layer["self_attn.k_norm.weight"], eps)
            keys = torch.stack([turned(key, position, theta) for position, key in enumerate(keys)])
            values = read @ value_rows[shared].T
            queries = normed(x @ query_rows[own].T, layer["self_attn.q_norm.weight"], eps)
            for place, query in enumerate(queries):
                seen = sees(*layer_masks[number], start, place, len(keys))
                weight = (keys[seen] @ turned(query, start + place, theta) / math.sqrt(dim)).softmax(0)
                attended[place, own] = weight @ values[seen]
        out = attended @ layer["self_attn.o_proj.weight"].T
        if head.form.dflash2:
            out = convolved(out, plain, 1, "attention_conv", layer, head.form.dflash2.group)
        hidden = hidden + out
        inner = plain = normed(hidden, layer["post_attention_layernorm.weight"], eps)
        if head.form.dflash2:
            inner = convolved(plain, plain, 0, "mlp_conv", layer, head.form.dflash2.group)
        gate = F.silu(inner @ layer["mlp.gate_proj.weight"].T)
        out = (gate * (inner @ layer["mlp.up_proj.weight"].T)) @ layer["mlp.down_proj.weight"].T
        if head.form.dflash2:
            out = convolved(out, plain, 1, "mlp_conv", layer, head.form.dflash2.group)
        hidden = hidden + out
    return hidden


def convolved(z: Tensor, x: Tensor, side: int, name: str, layer: dict[str, Tensor], group: int) -> Tensor:
    """DFlash2's convolution of states z, one channel at a time, with coefficients that the layer's inputs x give."""
    base, projection = layer[f"{name}.base_kernel"], layer[f"{name}.kernel_projection.weight"]
    taps, groups = base.shape[1], x.shape[1] // group
    out = torch.zeros_like(z)
    for slot in range(len(z)):
        delta = (projection @ x[slot]).view(2, taps, groups)
        for tap in range(min(taps, slot + 1)):
            for channel in range(z.shape[1]):
                coefficient = base[side, tap, channel] + delta[side, tap, channel // group]
                out[slot, channel] += coefficient * z[slot - tap, channel]
    return out


def after_selector(head: BlockHead, slots: Tensor, path: list[int], lm_head: Tensor) -> Tensor:
    """Log-probabilities after a path by DFlash2's steps; slots: states of those that speak of a token."""
    weights = {name: weight.double() for name, weight in head.state_dict().items()}
    form, hidden = head.form.dflash2, slots[len(path) - 1]
    unary = lm_head @ hidden * form.output_multiplier
    if form.softcap:
        unary = form.softcap * (unary / form.softcap).tanh()
    projected = weights["candidate_selector.hidden_projection.weight"] @ hidden
    scores = torch.full_like(unary, float("-inf"))
    for index in unary.topk(form.top_k).indices.tolist():
        token = index if head.tokens is None else int(head.tokens[index])
        pair = weights["candidate_selector.predecessor_codebook"][path[-1]]
        pair = pair * weights["candidate_selector.successor_codebook"][token]
        scores[index] = unary[index] + projected @ pair
    return scores.log_softmax(0)


def after_path(head: BlockHead, slots: Tensor, path: list[int], lm_head: Tensor) -> tuple[Tensor, float | None]:
    """Logits after a path (the root first) and the confidence in them, by a chain of DSpark's steps; slots: states of
    the block, lm_head: its rows."""
    weights, kind = {name: weight.double() for name, weight in head.state_dict().items()}, head.form.markov_kind
    rank, first = head.form.markov_rank, 0 if head.form.from_anchor else 1
    state = torch.zeros(rank).double()
    if head.form.dflash2:
        return after_selector(head, slots[first:], path, lm_head), None
    if head.form.domino:
        return after_domino(head, slots[first:], path, lm_head), None
    for place, token in enumerate(path):
        hidden = slots[first + place]
        embedded = weights["markov_head.markov_w1.weight"][token]
        read = embedded
        if kind == "gated":
            gate = weights["markov_head.gate_proj.weight"] @ torch.cat([hidden, embedded])
            read = (gate + weights["markov_head.gate_proj.bias"]).sigmoid() * embedded
        if kind == "rnn":
            joint = weights["markov_head.joint_proj.weight"] @ torch.cat([state, embedded, hidden])
            gate, new, out = (joint + weights["markov_head.joint_proj.bias"]).split(rank)
            state, read = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh(), out.tanh()
        logits = lm_head @ hidden + weights["markov_head.markov_w2.weight"] @ read
    confidence = None
    if head.form.confidence:
        seen = torch.cat([hidden, embedded]) if head.form.confidence_reads_token else hidden
        logit = weights["confidence_head.proj.weight"][0] @ seen + weights["confidence_head.proj.bias"][0]
        confidence = float(1 / (1 + (-logit).exp()))
    return logits, confidence


def after_domino(head: BlockHead, slots: Tensor, path: list[int], lm_head: Tensor) -> Tensor:
    """Logits after a path by Domino's steps; slots: states of those that speak of a token."""
    weights = {name: weight.double() for name, weight in head.state_dict().items()}
    size, _, first = head.form.domino
    state = torch.zeros(size).double()
    for token in path:
        read = weights["prefix_gru.weight_ih_l0"] @ head.embed_tokens.weight[token].double()
        kept = weights["prefix_gru.weight_hh_l0"] @ state
        reset, update = ((read + kept)[: 2 * size].sigmoid()).split(size)
        new = (read[2 * size :] + reset * kept[2 * size :]).tanh()
        state = update * state + (1 - update) * new
    hidden = slots[len(path) - 1]
    logits = lm_head @ hidden
    if len(path) > first:
        inner = F.silu(weights["embed_proj.0.weight"] @ torch.cat([hidden, state]))
        logits = logits + weights["embed_proj.2.weight"] @ inner
    return logits


def after_correction(head: BlockHead, states: Tensor, path: list[int], lm_head: Tensor) -> Tensor:
    """Logits after a path by TreeFlash's steps; states: the target's of the text before the path."""
    weights, norm = {name: weight.double() for name, weight in head.state_dict().items()}, head.norm.weight.double()
    x, eps = unnormed(head, states, path[0])[len(path)], head.config.rms_norm_eps
    embedded = head.embed_tokens.weight[path[-1]].double()
    read = torch.cat([normed(embedded, weights["ar_approximation.norm.weight"], 1e-6), normed(x, norm, eps)])
    up, gate = (weights["ar_approximation.ug.weight"] @ read + weights["ar_approximation.ug.bias"]).split(
        head.config.intermediate_size
    )
    x = x + weights["ar_approximation.d.weight"] @ (F.silu(gate) * up)
    return lm_head @ normed(x, norm, eps)
