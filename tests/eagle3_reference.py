"""EAGLE-3 heads as they are published, written down again without the library: the files of each layout, and what
SafeAILab's, SGLang's, vLLM's, speculators' and DeepSpec's modelling code computes from them, in plain torch.

A case is (config.json, tensors, Math): the file in its layout's names, and the computation in words of this module.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.eagle_reference import attention, layer_state, linear, mlp, norm, random_tensors
from tests.toys import VOCABULARY

H, INNER, HEADS, KV, REDUCED = 32, 40, 4, 2, 30
SIZES = {"hidden_size": H, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV}
SIZES |= {"num_hidden_layers": 1, "rms_norm_eps": 1e-6, "hidden_act": "silu", "vocab_size": VOCABULARY}


@dataclass(frozen=True)
class Math:
    """What a head computes. head_dim: of attention. rope: (theta, kind, settings). residual: what attention is added
    to. join: norms before fc ("", "all" or "each"). back: what is fed back. width: of one state of the target.
    windows: of each layer, 0 for none."""

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
    windows: tuple[int, ...] = (0, 0, 0)


def weights(maths: Math) -> dict[str, Tensor]:
    """Random tensors; the first layer is called layers.0 and the norms of single states fc_norm.0, fc_norm.1, ..."""
    tensor, config = random_tensors(2, 0.3), SIZES | {"head_dim": maths.head_dim}
    norms = {"norm": H, "layers.0.hidden_norm": H}
    if maths.join == "all":
        norms["input_norm"] = maths.taps * maths.width
    if maths.join == "each":
        norms |= {f"fc_norm.{tap}": maths.width for tap in range(maths.taps)}
    state = {"lm_head.weight": tensor(maths.reduced, H)}
    if maths.taps:
        state["fc.weight"] = tensor(H, maths.taps * maths.width)
    if maths.fc_bias:
        state["fc.bias"] = tensor(H)
    for layer in range(maths.layers):
        own = layer_state(tensor, config, H if layer else 2 * H, "qkvo" if maths.attention_bias else "")
        state |= {f"layers.{layer}.{name}": weight for name, weight in own.items()}
        norms |= {f"layers.{layer}.{name}": H for name in ("input_layernorm", "post_attention_layernorm")}
        if maths.query_norm:
            norms |= {f"layers.{layer}.self_attn.{part}_norm": maths.head_dim for part in "qk"}
    state |= {f"{name}.weight": 1 + tensor(width) for name, width in norms.items()}
    if maths.reduced < VOCABULARY:
        kept = tensor(VOCABULARY).argsort()[: maths.reduced].sort().values
        state["d2t"] = kept - torch.arange(maths.reduced)
        state["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, kept, True)
    return state


def file(state: dict[str, Tensor], first: str = "midlayer", each: str = "", prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a published file. first: name of the first layer; each: of the norms of the low, the middle and
    the high state, if they have these names; prefix: of all names but those of the maps."""
    found = {}
    for name, tensor in state.items():
        published = name.replace("layers.0", first)
        if each and name.startswith("fc_norm."):
            published = each + dict(zip("012", ("low", "mid", "high"), strict=True))[name.split(".")[1]] + ".weight"
        found[published if name in ("d2t", "t2d") else prefix + published] = tensor
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
            fed = norm(SIZES, w, "norm", out[-1:]) if maths.back == "normed output" else out[-1:]
            states, tokens = torch.cat([states, fed]), [*tokens, extra]
        out = layers(maths, w, embedding[torch.tensor(tokens)].double(), states)
    return linear(w, "lm_head", norm(SIZES, w, "norm", out[-1]))


def fused(maths: Math, w: dict[str, Tensor], features: Tensor) -> Tensor:
    if not maths.taps:
        return features
    if maths.join == "all":
        features = norm(SIZES, w, "input_norm", features)
    if maths.join == "each":
        parts = features.split(maths.width, 1)
        features = torch.cat([norm(SIZES, w, f"fc_norm.{tap}", part) for tap, part in enumerate(parts)], 1)
    return linear(w, "fc", features)


def layers(maths: Math, w: dict[str, Tensor], embedded: Tensor, state: Tensor) -> Tensor:
    for number in range(maths.layers):
        own = {name.removeprefix(f"layers.{number}."): tensor for name, tensor in w.items()}
        if number == 0:
            normed = norm(SIZES, own, "hidden_norm", state)
            read = torch.cat([norm(SIZES, own, "input_layernorm", embedded), normed], 1)
            base = normed if maths.residual == "normed state" else state
        else:
            read, base = norm(SIZES, own, "input_layernorm", state), state
        turns, window = rotation(maths, len(read)), maths.windows[number]
        hidden = base + attention(SIZES | {"head_dim": maths.head_dim}, own, read, *turns, window)
        state = hidden + mlp(own, norm(SIZES, own, "post_attention_layernorm", hidden))
    return state


def rotation(maths: Math, n: int) -> tuple[Tensor, float]:
    """Angles (n, head_dim) and the factor of yarn; frequencies in float32, as published code has them."""
    theta, kind, s = maths.rope
    half = torch.arange(0, maths.head_dim, 2, dtype=torch.float32) / maths.head_dim
    frequency, scale = 1 / theta**half, 1.0
    if kind == "linear":
        frequency = frequency / s["factor"]
    if kind == "llama3":
        turns = s["original_max_position_embeddings"] * frequency / (2 * math.pi)
        smooth = ((turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])).clamp(0, 1)
        frequency = (1 - smooth) * frequency / s["factor"] + smooth * frequency
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


def deepspec(**changes) -> dict:
    """config.json of deepseek-ai's heads: a copy of the target's, and what DeepSpec's trainer adds."""
    config = {"architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", "head_dim": 12, **SIZES, **BOOKKEEPING}
    config |= {"attention_bias": False, "layer_types": ["full_attention"], "max_position_embeddings": 2048}
    config |= {"max_window_layers": 36, "sliding_window": None, "use_sliding_window": False, "rope_theta": 500.0}
    config |= {
        "num_target_layers": 8,
        "target_layer_ids": [1, 2, 4, 5, 6],
        "target_model_name_or_path": "Qwen/Qwen3-4B",
    }
    config |= {"draft_num_hidden_layers": 1, "ttt_length": 7, "step_loss_decay": 0.8, "tie_word_embeddings": False}
    return {name: value for name, value in (config | changes).items() if value != "left out"}


SPECULATORS = {"first": "layers.0"}
QWEN3 = {"model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 12}
# Entries that heads' configs have from their targets': the class says what layers a flat head has, not model_type.
PHI4 = {"model_type": "phi3", "embd_pdrop": 0.0, "resid_pdrop": 0.0, "partial_rotary_factor": 1.0}
PHI4 |= {"original_max_position_embeddings": 16384}
QWQ = {"model_type": "qwen2", "use_sliding_window": False, "max_window_layers": 64, "sliding_window": 32768}
# Of speculators' trainer since July 2026; a switch that is off, as in heads for Gemma, asks for nothing.
WINDOWED = {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention"]}
OFF = {"use_sliding_window": False, "sliding_window": 3, "layer_types": ["full_attention"]}
MIXED = WINDOWED | {"num_hidden_layers": 3}
MIXED |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
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
    "phi4": (flat(**PHI4), Math(), {}),
    "qwq": (flat(**QWQ), Math(), {}),
    "deepseek-ai": (
        deepspec(),
        Math(taps=5, query_norm=True, head_dim=12, rope=(500.0, "default", {}), reduced=VOCABULARY),
        SPECULATORS,
    ),
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
    "speculators, window": (speculators(WINDOWED), Math(windows=(3,)), SPECULATORS),
    "speculators, window without a switch": (
        speculators({name: value for name, value in WINDOWED.items() if name != "use_sliding_window"}),
        Math(windows=(3,)),
        SPECULATORS,
    ),
    "speculators qwen3, windows in some layers": (
        speculators({**QWEN3, **MIXED, "rope_parameters": {"sliding_attention": {"rope_theta": 500.0}}}),
        Math(layers=3, query_norm=True, head_dim=12, windows=(3, 0, 3), rope=(500.0, "default", {})),
        SPECULATORS,
    ),
    "flat, windows in some layers": (flat(**MIXED), Math(layers=3, windows=(3, 0, 3)), {}),
    "flat, a window that is off": (flat(**OFF), Math(), {}),
    "speculators, window of one position": (
        speculators(WINDOWED | {"sliding_window": 1}),
        Math(windows=(1,)),
        SPECULATORS,
    ),
    "speculators, rope_scaling": (
        speculators({"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": LLAMA3}),
        Math(rope=(500.0, "llama3", LLAMA3)),
        SPECULATORS,
    ),
}
