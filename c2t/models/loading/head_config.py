"""The config.json that a head is written with: upstream's entries, and c2t's own where upstream has none."""

from typing import Any

from c2t.models.drafts.block import BlockHead
from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.medusa import MedusaHead
from c2t.models.drafts.mtp import MTPHead
from c2t.models.loading import block_config, eagle3_config
from c2t.models.target.families import FULL, SLIDING

# Entries of config.json that are those of transformers' config.
_COPIED = ("hidden_act", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_COPIED += ("num_key_value_heads", "rms_norm_eps", "max_position_embeddings")


def raw_of(head: Head) -> dict:
    """Return the content of the head's config.json."""
    config = head.config
    rope = config.rope_parameters
    raw = {
        "architectures": [_architecture(head)],
        "model_type": "llama",
        **{name: getattr(config, name) for name in _COPIED},
        "rope_theta": rope["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    if config.head_dim != config.hidden_size // config.num_attention_heads:
        raw["head_dim"] = config.head_dim
    if rope["rope_type"] != "default":
        others = {name: value for name, value in rope.items() if name not in ("rope_type", "rope_theta")}
        raw["rope_scaling"] = {"type": rope["rope_type"], **others}
    if isinstance(head, EagleHead):
        raw["bias"] = head.bias
    if isinstance(head, EagleHead) and head.qkv_bias:
        raw["qkv_bias"] = True
    if isinstance(head, Eagle3Head):
        raw["draft_vocab_size"] = head.lm_head.out_features
        raw["target_hidden_size"] = head.target_width
        raw |= _variant(head)
    if isinstance(head, BlockHead):
        raw |= block_config.raw_of(head)
    if isinstance(head, MedusaHead):
        raw["medusa_num_heads"] = len(head.heads)
        if head.layer_of:
            raw["layer_of"] = head.layer_of
    return raw


def _architecture(head: Head) -> str:
    return type(head).__name__ if isinstance(head, MTPHead | MedusaHead) else "LlamaForCausalLM"


def _variant(head: Eagle3Head) -> dict:
    """Return the entries of config.json in which a head differs from SafeAILab's."""
    variant, config = head.variant, head.config
    raw: dict[str, Any] = {name: True for name in eagle3_config.SWITCHES if getattr(variant, name)}
    if head.shares_lm_head:
        raw["target_rows"] = True
    if variant.fc_bias:
        raw["bias"] = True
    if not variant.taps:
        raw["use_aux_hidden_state"] = False
    if variant.inputs is not None:
        raw["taps"] = list(variant.inputs)
    if variant.layer_ids is not None:
        raw[eagle3_config.IDS] = list(variant.layer_ids)
    if variant.target_layers is not None:
        raw["num_target_layers"] = variant.target_layers
    if variant.windows:
        raw |= {"sliding_window": max(variant.windows), "use_sliding_window": True}
        raw["layer_types"] = [SLIDING if window else FULL for window in variant.windows]
    if config.head_dim != config.hidden_size // config.num_attention_heads:
        raw["head_dim"] = config.head_dim
    return raw | {name: True for name in ("attention_bias", "mlp_bias") if getattr(config, name, False)}
