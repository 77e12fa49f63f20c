"""EAGLE-3 heads in speculators' layout, which vLLM reads: a nested config, and embedding and LM head in the file."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from c2t.errors import InputError
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.heads import embedding_of
from c2t.models.loading import eagle3_config
from c2t.models.loading.eagle_checkpoint import load_head
from c2t.models.target.target import Target
from c2t.storage import paths

FOLDER = "speculators"  # next to the head's
LAYER = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
LAYER += ("head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "vocab_size", "rope_parameters")


def export_speculators(head: Path, target: Target, name: str) -> Path:
    """Write the EAGLE-3 head in a folder to another one next to it, in speculators' layout; return that. name: of the
    target, for the config. InputError for another kind of head."""
    eagle3 = load_head(head, embedding_of(target), target.lm_head)
    if not isinstance(eagle3, Eagle3Head):
        raise InputError(f"{head}: speculators' layout is for EAGLE-3 heads: train one with --kind eagle3")
    config, tensors = eagle3.config, dict(eagle3.to(torch.bfloat16).state_dict())
    tensors["embed_tokens.weight"] = eagle3.embed_tokens.weight.to(torch.bfloat16)
    renamed = {key.replace("midlayer.", "layers.0."): tensor.contiguous().clone() for key, tensor in tensors.items()}
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "accept_tolerance": 0.0, "verifier_accept_k": 1}
    raw: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": eagle3.lm_head.out_features,
        "dtype": "bfloat16",
        eagle3_config.IDS: list(eagle3.taps(target.num_layers)),  # inputs of layers, as speculators counts
        "model_type": "speculator_model",
        "norm_before_residual": False,
        eagle3_config.KIND: "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": name, "architectures": target.model.config.architectures or []},
        },
        "tie_word_embeddings": False,
        "transformer_layer_config": {"model_type": "llama", **{key: getattr(config, key) for key in LAYER}},
    }
    with paths.replacing(head.parent / FOLDER) as folder:
        save_file({key: tensor.cpu() for key, tensor in renamed.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    return head.parent / FOLDER
