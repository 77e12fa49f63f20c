"""The config that transformers has for the model in a GGUF file, from the file's entries."""

from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from c2t.errors import InputError, refusing, short_repr
from c2t.models.gguf.blocks import dequantized
from c2t.models.gguf.reader import AGAIN, Gguf

SIZE, LAYERS, POSITIONS = 2**24, 1024, 2**31  # what `c2t.models.loading.checkpoint_files` allows a config
TOKENS = "tokenizer.ggml.tokens"
# Tokens that end a turn, besides the one that the file names; llama.cpp knows them by these texts, too.
ENDS_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")
LOCAL_BASE = 10_000.0  # of the rotary embeddings in Gemma 3's layers with windows, which older files do not say
FACTORS = ("rope.scaling.factor", "rope.scale_linear")
# Entries of YaRN, with the only value that c2t computes.
YARN_ONLY = {f"rope.scaling.{name}": 1.0 for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor")}
YARN_ONLY |= {"rope.scaling.yarn_log_multiplier": 0.0}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class ModelEntries(NamedTuple):
    """ModelEntries of a file's architecture, checked as they are read."""

    file: Gguf

    def key(self, name: str) -> str:
        return f"{self.file.architecture}.{name}"

    def has(self, name: str) -> bool:
        return self.key(name) in self.file.entries

    def whole(self, name: str, default: int | None = None, most: int = SIZE) -> int:
        """Return a number from 1 to `most`; where layers have one each, all must be the same."""
        value = self.file.entries.get(self.key(name), default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, list):
            raise InputError(f"{self.file.path}: {self.key(name)} differs from layer to layer, which c2t does not run")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.wrong(name, value, f"a whole number from 1 to {most:,}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """Return a number above 0."""
        value = self.file.entries.get(self.key(name), default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0 or not isfinite(value):
            raise self.wrong(name, value, "a number above 0")
        return value

    def wrong(self, name: str, value: Any, wanted: str) -> InputError:
        said = "is missing" if value is None else f"= {short_repr(value)}"
        return InputError(f"{self.file.path}: {self.key(name)} {said}, and must be {wanted}; {AGAIN}")

    def refuse(self, name: str) -> None:
        """Raise InputError for a part of models that c2t does not run, unless it is switched off."""
        if self.file.entries.get(self.key(name)):
            raise InputError(f"{self.file.path}: {self.key(name)}: c2t does not run models with that")


def config_of(file: Gguf) -> PreTrainedConfig:
    """Return the config of a file's model. InputError for an architecture that c2t does not read, for entries that are
    missing or wrong, and for parts of models that it does not run."""
    if file.architecture not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise InputError(f"{file.path}: a model of the architecture {file.architecture!r}; c2t reads {names}")
    if file.entries.get("split.count", 1) != 1:
        raise InputError(f"{file.path}: one of several parts of a model: join them with llama-gguf-split --merge")
    entries = ModelEntries(file)
    for name in ("expert_count", "final_logit_softcapping", "attn_logit_softcapping"):
        entries.refuse(name)
    values = _common(entries)
    values |= ARCHITECTURES[file.architecture](entries, values)
    values["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[values["model_type"]]]
    with refusing(f"{file.path}: its entries make no config"):
        config = AutoConfig.for_model(**values)
        config.dtype = dtype_of(file)
    return config


def generation_of(config: PreTrainedConfig, file: Gguf) -> GenerationConfig:
    """Return the tokens that begin and end a text."""
    names = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"]
    ends = [file.entries[name] for name in names if file.entries.get(name) is not None]
    tokens = file.entries[TOKENS]
    kinds = file.entries.get("tokenizer.ggml.token_type") or [0] * len(tokens)
    ends += [number for number, token in enumerate(tokens) if token in ENDS_OF_TURN and kinds[number] == 3]
    ends = list(dict.fromkeys(ends))
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=ends[0] if len(ends) == 1 else ends or None,
        pad_token_id=config.pad_token_id,
    )


def dtype_of(file: Gguf) -> torch.dtype:
    """Return the type of the converted weights: that of the matrices if all have one, else bf16."""
    kinds = {tensor.type.dtype for tensor in file.tensors.values() if len(tensor.shape) > 1}
    [dtype] = kinds if len(kinds) == 1 else [None]
    return dtype or torch.bfloat16


def _common(entries: ModelEntries) -> dict[str, Any]:
    file = entries.file
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise InputError(f"{file.path}: it has no embeddings of its tokens (token_embd.weight); {AGAIN}")
    hidden, heads = entries.whole("embedding_length"), entries.whole("attention.head_count")
    special = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    ids = {f"{name}_token_id": file.entries.get(f"tokenizer.ggml.{key}_token_id") for name, key in special.items()}
    values = {
        "max_position_embeddings": entries.whole("context_length", most=POSITIONS),
        "hidden_size": hidden,
        "num_hidden_layers": entries.whole("block_count", most=LAYERS),
        "intermediate_size": entries.whole("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": entries.whole("attention.head_count_kv", heads),
        "rms_norm_eps": entries.real("attention.layer_norm_rms_epsilon"),
        "head_dim": entries.whole("attention.key_length", max(1, hidden // heads)),
        "vocab_size": table.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": {"rope_type": "default", "rope_theta": entries.real("rope.freq_base", 10_000.0)},
        **{name: number for name, number in ids.items() if number is not None},
    }
    if entries.has("attention.value_length") and entries.whole("attention.value_length") != values["head_dim"]:
        raise InputError(f"{file.path}: keys and values of different lengths, which c2t does not run")
    return values


def _scaling(entries: ModelEntries) -> dict[str, Any]:
    """Return how rotary embeddings are stretched, by entries that all architectures share."""
    # Old files of llama.cpp have only a factor, and older ones that under another name; 0 stands for none.
    kind = entries.file.entries.get(entries.key("rope.scaling.type"), "linear")
    named = next((name for name in FACTORS if entries.file.entries.get(entries.key(name))), None)
    if kind == "none" or (kind == "linear" and not named):
        return {}
    factor = {"factor": entries.real(named or FACTORS[0])}
    if kind == "linear":
        return {"rope_type": "linear", **factor}
    if kind == "yarn":
        length = entries.whole("rope.scaling.original_context_length", most=POSITIONS)
        for name, neutral in YARN_ONLY.items():
            if entries.file.entries.get(entries.key(name)) != neutral:
                entries.refuse(name)
        betas = {name: f"rope.scaling.yarn_{name}" for name in ("beta_fast", "beta_slow")}
        more = {name: entries.real(key) for name, key in betas.items() if entries.has(key)}
        return {"rope_type": "yarn", **factor, **more, "original_max_position_embeddings": length}
    raise InputError(f"{entries.file.path}: {entries.key('rope.scaling.type')} = {kind!r}, which c2t does not know")


def _whole_heads(entries: ModelEntries, values: dict[str, Any]) -> None:
    turned = entries.whole("rope.dimension_count", values["head_dim"])
    if turned != values["head_dim"]:
        raise InputError(f"{entries.file.path}: {entries.key('rope.dimension_count')} = {turned} of heads of "
                         f"{values['head_dim']}, which c2t does not run for this architecture")  # fmt: skip


def _llama(entries: ModelEntries, values: dict[str, Any]) -> dict[str, Any]:
    """Llama, and Mistral, whose files say llama, too."""
    file = entries.file
    if not entries.has("attention.key_length"):
        values["head_dim"] = entries.whole("rope.dimension_count", values["head_dim"])
    _whole_heads(entries, values)
    rope = values["rope_parameters"] | _scaling(entries)
    if "rope_freqs.weight" in file.tensors:
        rope |= _llama3(file, rope["rope_theta"], values["head_dim"])
    biased = "blk.0.attn_q.bias" in file.tensors
    return {"model_type": "llama", "rope_parameters": rope, "attention_bias": biased}


def _llama3(file: Gguf, base: float, dim: int) -> dict[str, Any]:
    """Return how Llama 3.1 and later stretch their rotary embeddings. The file has only the factors that follow from
    it, one for each frequency; they must be those of Meta's models."""
    factors = _numbers(file, "rope_freqs.weight")
    rope = {"rope_type": "llama3", "rope_theta": base, "factor": float(factors.max()), **LLAMA3}
    config = AutoConfig.for_model("llama", head_dim=dim, rope_parameters=rope, max_position_embeddings=131072)
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    # as many digits as both ways of computing them have in common
    if factors.shape != plain.shape or not torch.allclose(plain / stretched, factors, rtol=1e-4):
        raise InputError(f"{file.path}: rope_freqs.weight has other factors than Llama 3's, which c2t does not know")
    return rope


def _numbers(file: Gguf, name: str) -> torch.Tensor:
    tensor = file.tensors[name]
    if len(tensor.shape) != 1 or tensor.type.dtype is None:
        raise InputError(f"{file.path}: damaged: {name} is no list of plain numbers; {AGAIN}")
    [row] = file.rows(tensor, 1)
    numbers = dequantized(row, tensor.type)[0].float()
    if not bool((numbers > 0).all()):
        raise InputError(f"{file.path}: damaged: {name} has numbers that are not above 0; {AGAIN}")
    return numbers


def _qwen2(entries: ModelEntries, values: dict[str, Any]) -> dict[str, Any]:
    _whole_heads(entries, values)
    return {"model_type": "qwen2", "rope_parameters": values["rope_parameters"] | _scaling(entries)}


def _qwen3(entries: ModelEntries, values: dict[str, Any]) -> dict[str, Any]:
    return _qwen2(entries, values) | {"model_type": "qwen3"}


def _gemma3(entries: ModelEntries, values: dict[str, Any]) -> dict[str, Any]:
    _whole_heads(entries, values)
    layers, hidden, heads = values["num_hidden_layers"], values["hidden_size"], values["num_attention_heads"]
    full = values["rope_parameters"] | _scaling(entries)
    local = {"rope_type": "default", "rope_theta": entries.real("rope.freq_base_swa", LOCAL_BASE)}
    every = entries.file.entries.get(entries.key("attention.sliding_window_pattern"), 6)
    if not isinstance(every, list):
        every = entries.whole("attention.sliding_window_pattern", 6)
        every = [(layer + 1) % every != 0 for layer in range(layers)]
    if len(every) != layers:
        raise entries.wrong("attention.sliding_window_pattern", every, f"a list of {layers}, one for each layer")
    return {
        "model_type": "gemma3_text",
        "layer_types": ["sliding_attention" if window else "full_attention" for window in every],
        "sliding_window": entries.whole("attention.sliding_window", most=POSITIONS),
        # the file does not say it; only the model of 27 billion weights has another one than a head's dimensions
        "query_pre_attn_scalar": hidden // heads if layers == 62 else values["head_dim"],
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
    }


def _phi3(entries: ModelEntries, values: dict[str, Any]) -> dict[str, Any]:
    file, dim = entries.file, values["head_dim"]
    rope = values["rope_parameters"] | {"partial_rotary_factor": entries.whole("rope.dimension_count", dim) / dim}
    more = {"model_type": "phi3", "rope_parameters": rope}
    more["pad_token_id"] = values.get("pad_token_id")  # transformers' default is not in every vocabulary
    if file.entries.get(entries.key("attention.sliding_window")):
        more["sliding_window"] = entries.whole("attention.sliding_window", most=POSITIONS)
    if "rope_factors_long.weight" in file.tensors and "rope_factors_short.weight" in file.tensors:
        length = entries.whole("rope.scaling.original_context_length", most=POSITIONS)
        factors = {name: _numbers(file, f"rope_factors_{name}.weight").tolist() for name in ("long", "short")}
        rope |= {"rope_type": "longrope", "long_factor": factors["long"], "short_factor": factors["short"]}
        rope["original_max_position_embeddings"] = more["original_max_position_embeddings"] = length
        if entries.has("rope.scaling.attn_factor"):
            rope["attention_factor"] = entries.real("rope.scaling.attn_factor")
    else:
        rope |= _scaling(entries)
    return more


ARCHITECTURES: dict[str, Callable[[ModelEntries, dict[str, Any]], dict[str, Any]]] = {
    **{"llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "gemma3": _gemma3, "phi3": _phi3}
}
