"""EAGLE-3 heads as they are published, written down again without the library: the files of each layout, and what
SafeAILab's, SGLang's, vLLM's and speculators' modelling code computes from them, in plain torch.

A case is (config.json, tensors, Math): the file in its layout's names, and the computation in words of this module.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from tests.toys import VOCABULARY

H, INNER, HEADS, KV, REDUCED = 32, 40, 4, 2, 30


@dataclass(frozen=True)
class Math:
    """What a head computes. head_dim: of attention. rope: (theta, kind, settings). residual: what attention is added
    to. join: norms before fc ("", "all" or "each"). back: what is fed back. width: of one state of the target."""

    taps: int = 3
    width: int = H
    head_dim: int = H // HEADS
    layers: int = 1
    query_norm: bool = False
    residual: str = "state"
    join: str = ""
    back: str = "output"
    rope: tuple[float, str, dict] = (10000.0, "default", {})
    reduced: int = REDUCED
    fc_bias: bool = False
    attention_bias: bool = False
    epsilon: float = 1e-6


def weights(maths: Math, seed: int = 2) -> dict[str, Tensor]:
    """Random tensors, under names of this module: "0.q", "1.gate", "fc", ... and "...bias"."""
    generator = torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    query, key = HEADS * maths.head_dim, KV * maths.head_dim
    state: dict[str, Tensor] = {}
    if maths.taps:
        state["fc"] = tensor(H, maths.taps * maths.width)
    if maths.fc_bias:
        state["fc.bias"] = tensor(H)
    if maths.join == "all":
        state["join"] = 1 + tensor(maths.taps * maths.width)
    if maths.join == "each":
        state |= {f"join.{tap}": 1 + tensor(maths.width) for tap in range(maths.taps)}
    for layer in range(maths.layers):
        read = H if layer else 2 * H
        parts = {"q": (query, read), "k": (key, read), "v": (key, read), "o": (H, query)}
        for name, shape in parts.items():
            state[f"{layer}.{name}"] = tensor(*shape)
            if maths.attention_bias:
                state[f"{layer}.{name}.bias"] = tensor(shape[0])
        if maths.query_norm:
            state |= {f"{layer}.q_norm": 1 + tensor(maths.head_dim), f"{layer}.k_norm": 1 + tensor(maths.head_dim)}
        state |= {f"{layer}.gate": tensor(INNER, H), f"{layer}.up": tensor(INNER, H), f"{layer}.down": tensor(H, INNER)}
        state |= {f"{layer}.input": 1 + tensor(H), f"{layer}.post": 1 + tensor(H)}
    state |= {"0.hidden": 1 + tensor(H), "norm": 1 + tensor(H), "head": tensor(maths.reduced, H)}
    kept = torch.randperm(VOCABULARY, generator=generator)[: maths.reduced].sort().values
    if maths.reduced < VOCABULARY:
        state["kept"] = kept
    return state


def file(state: dict[str, Tensor], first: str = "midlayer", each: str = "fc_norm.{}", prefix: str = "") -> dict:
    """The tensors of a published file. first: name of the first layer; each: of the norms of single states."""
    places = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
    places |= {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm", "gate": "mlp.gate_proj"}
    places |= {"up": "mlp.up_proj", "down": "mlp.down_proj", "input": "input_layernorm"}
    places |= {"post": "post_attention_layernorm", "hidden": "hidden_norm"}
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        stem, _, bias = name.partition(".bias") if name.endswith(".bias") else (name, "", None)
        end = "weight" if bias is None else "bias"
        if name == "kept":
            found["d2t"] = tensor - torch.arange(len(tensor))
            found["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, tensor, True)
        elif stem[0].isdigit():
            layer, part = stem.split(".")
            found[f"{prefix}{first if layer == '0' else f'layers.{layer}'}.{places[part]}.{end}"] = tensor
        elif stem.startswith("join."):
            number = int(stem[5:])
            name = each.format(number) if "{}" in each else each + ("low", "mid", "high")[number]
            found[f"{prefix}{name}.weight"] = tensor
        else:
            found[f"{prefix}{ {'join': 'input_norm', 'head': 'lm_head'}.get(stem, stem) }.{end}"] = tensor
    return found


@torch.no_grad()
def draft(
    maths: Math, state: dict[str, Tensor], embedding: Tensor, features: Tensor, tokens: list[int], path: list[int]
) -> Tensor:
    """Logits over the draft's vocabulary after a path of drafted tokens. features (n, taps * width) are the target's
    states, tokens the n tokens after them, of which the last one is the root."""
    w = {name: tensor.double() for name, tensor in state.items()}
    states, out = fused(maths, w, features.double()), None
    for extra in [None, *path]:
        if extra is not None:
            fed = norm(out[-1:], w["norm"], maths) if maths.back == "normed output" else out[-1:]
            states, tokens = torch.cat([states, fed]), [*tokens, extra]
        out = layers(maths, w, embedding[torch.tensor(tokens)].double(), states)
    return norm(out[-1], w["norm"], maths) @ w["head"].T


def fused(maths: Math, w: dict[str, Tensor], features: Tensor) -> Tensor:
    if not maths.taps:
        return features
    if maths.join == "all":
        features = norm(features, w["join"], maths)
    if maths.join == "each":
        parts = features.split(maths.width, 1)
        features = torch.cat([norm(part, w[f"join.{tap}"], maths) for tap, part in enumerate(parts)], 1)
    return features @ w["fc"].T + w.get("fc.bias", 0)


def layers(maths: Math, w: dict[str, Tensor], embedded: Tensor, state: Tensor) -> Tensor:
    for number in range(maths.layers):
        if number == 0:
            normed = norm(state, w["0.hidden"], maths)
            read = torch.cat([norm(embedded, w["0.input"], maths), normed], 1)
            base = normed if maths.residual == "normed state" else state
        else:
            read, base = norm(state, w[f"{number}.input"], maths), state
        hidden = base + attention(maths, w, number, read)
        x = norm(hidden, w[f"{number}.post"], maths)
        state = hidden + (silu(x @ w[f"{number}.gate"].T) * (x @ w[f"{number}.up"].T)) @ w[f"{number}.down"].T
    return state


def attention(maths: Math, w: dict[str, Tensor], layer: int, x: Tensor) -> Tensor:
    n, size = len(x), maths.head_dim
    angles, scale = rotation(maths, n)

    def project(name: str, heads: int) -> Tensor:
        y = (x @ w[f"{layer}.{name}"].T + w.get(f"{layer}.{name}.bias", 0)).view(n, heads, size)
        if maths.query_norm and name != "v":
            y = norm(y, w[f"{layer}.{name}_norm"], maths)
        return y.transpose(0, 1)

    def turn(y: Tensor) -> Tensor:
        half = torch.cat([-y[..., size // 2 :], y[..., : size // 2]], -1)
        return (y * angles.cos() + half * angles.sin()) * scale

    q, k = turn(project("q", HEADS)), turn(project("k", KV)).repeat_interleave(HEADS // KV, 0)
    scores = q @ k.transpose(1, 2) / size**0.5
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
    mixed = scores.softmax(-1) @ project("v", KV).repeat_interleave(HEADS // KV, 0)
    return mixed.transpose(0, 1).reshape(n, -1) @ w[f"{layer}.o"].T + w.get(f"{layer}.o.bias", 0)


def rotation(maths: Math, n: int) -> tuple[Tensor, float]:
    """Angles (n, head_dim) and the factor of yarn; frequencies in float32, as published code has them."""
    theta, kind, s = maths.rope
    half = torch.arange(0, maths.head_dim, 2, dtype=torch.float32) / maths.head_dim
    frequency, scale = 1 / theta**half, 1.0
    if kind == "linear":
        frequency = frequency / s["factor"]
    if kind == "llama3":
        old = s["original_max_position_embeddings"]
        low, high = old / s["low_freq_factor"], old / s["high_freq_factor"]
        turned = []
        for f in frequency:
            wave = 2 * math.pi / f
            if wave < high:
                turned.append(f)
            elif wave > low:
                turned.append(f / s["factor"])
            else:
                smooth = (old / wave - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
                turned.append((1 - smooth) * f / s["factor"] + smooth * f)
        frequency = torch.stack(turned)
    if kind == "yarn":
        old, size = s["original_max_position_embeddings"], maths.head_dim

        def place(turns: float) -> float:
            return size * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = place(s.get("beta_fast", 32)), place(s.get("beta_slow", 1))
        if s.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
        frequency = frequency / s["factor"] * ramp + frequency * (1 - ramp)
        scale = s.get("attention_factor", 0.1 * math.log(s["factor"]) + 1)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * frequency.double()
    return torch.cat([angles, angles], 1), scale


def norm(x: Tensor, weight: Tensor, maths: Math) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + maths.epsilon).rsqrt() * weight


SIZES = {"hidden_size": H, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV}
SIZES |= {"num_hidden_layers": 1, "rms_norm_eps": 1e-6, "hidden_act": "silu", "vocab_size": VOCABULARY}
BOOKKEEPING = {"bos_token_id": 1, "torch_dtype": "bfloat16", "transformers_version": "4.53.1", "use_cache": True}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 |= {"rope_type": "llama3"}


def flat(**changes) -> dict:
    """config.json of SafeAILab, SpecForge, lmsys, AngelSlim; a None leaves an entry out."""
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": REDUCED}
    config |= {"tie_word_embeddings": False, "max_position_embeddings": 2048, **SIZES, **BOOKKEEPING, **changes}
    return {name: value for name, value in config.items() if value is not None}


def speculators(layer: dict | None = None, **changes) -> dict:
    """config.json of RedHatAI's heads."""
    inner = {"model_type": "llama", "head_dim": H // HEADS, "attention_bias": False, "mlp_bias": False, **SIZES}
    inner |= {"max_position_embeddings": 2048, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    config = {
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "draft_vocab_size": REDUCED,
        "eagle_aux_hidden_state_layer_ids": None,
        "has_no_defaults_at_init": False,
        "norm_before_residual": False,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "/a/private/place"}},
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "target_hidden_size": None,
        "transformer_layer_config": inner | (layer or {}),
        **BOOKKEEPING,
    }
    return {name: value for name, value in (config | changes).items() if value != "left out"}


SPECULATORS = {"first": "layers.0"}
QWEN3 = {"model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 12}
LINEAR, YARN = {"type": "linear", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}
YARN |= {"original_max_position_embeddings": 512}
GPT_OSS = YARN | {"beta_fast": 24.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.5}
# name -> config.json, what the head computes, names in its file
LAYOUTS: dict[str, tuple[dict, Math, dict]] = {
    "SafeAILab": (flat(architectures=["LlamaForCausalLM"]), Math(), {}),
    "head_dim": (flat(head_dim=12), Math(head_dim=12), {}),
    "several layers": (flat(num_hidden_layers=3), Math(layers=3), {}),
    "whole vocabulary": (flat(draft_vocab_size=VOCABULARY), Math(reduced=VOCABULARY), {}),
    "draft_vocab_size left out": (flat(draft_vocab_size=None), Math(reduced=VOCABULARY), {}),
    "five taps": (flat(eagle_aux_hidden_state_layer_ids=[1, 2, 3, 4, 5]), Math(taps=5), {}),
    "one tap": (flat(eagle_config={"eagle_aux_hidden_state_layer_ids": [8]}), Math(taps=1), {}),
    "no taps": (flat(eagle_config={"use_aux_hidden_state": False}), Math(taps=0), {}),
    "norm_before_fc": (flat(eagle_config={"norm_before_fc": True}), Math(join="all"), {}),
    "EAGLE-3.1": (flat(fc_norm=True, norm_output=True), Math(join="each", back="normed output"), {}),
    "use_aux_norm": (flat(use_aux_norm=True), Math(join="each"), {"each": "aux_norm_"}),
    "fc bias": (flat(bias=True), Math(fc_bias=True), {}),
    "query norms": (flat(), Math(query_norm=True), {}),
    "attention_bias": (flat(attention_bias=True), Math(attention_bias=True), {}),
    "linear RoPE": (flat(rope_scaling=LINEAR), Math(rope=(10000.0, "linear", LINEAR)), {}),
    "llama3 RoPE": (flat(rope_scaling=LLAMA3, rope_theta=500.0), Math(rope=(500.0, "llama3", LLAMA3)), {}),
    "yarn RoPE": (flat(rope_scaling=YARN), Math(rope=(10000.0, "yarn", YARN)), {}),
    "yarn RoPE, all settings": (flat(rope_scaling=GPT_OSS), Math(rope=(10000.0, "yarn", GPT_OSS)), {}),
    "NeMo": (flat(), Math(), {"prefix": "model."}),
    "speculators": (speculators(), Math(), SPECULATORS),
    "norm_before_residual": (speculators(norm_before_residual=True), Math(residual="normed state"), SPECULATORS),
    "flat norm_before_residual": (flat(norm_before_residual=True), Math(residual="normed state"), {}),
    "speculators qwen3": (speculators(QWEN3), Math(layers=2, query_norm=True, head_dim=12), SPECULATORS),
    "speculators of 2026": (
        speculators(
            {"rope_parameters": {"full_attention": {"rope_theta": 500.0, **LLAMA3}}, "layer_types": ["full_attention"]},
            norm_before_residual=True,
            norm_before_fc=True,
            norm_output=True,
            eagle_aux_hidden_state_layer_ids=[2, 4, 5],
        ),
        Math(residual="normed state", join="all", back="normed output", rope=(500.0, "llama3", LLAMA3)),
        SPECULATORS,
    ),
    "speculators, rope_scaling": (
        speculators({"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": LLAMA3}),
        Math(rope=(500.0, "llama3", LLAMA3)),
        SPECULATORS,
    ),
}
