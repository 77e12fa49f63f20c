"""GGUF files of a target's own weights, in the types that llama.cpp is measured in.

The first file holds the target's weights in bf16, of which the library makes the others. It names no tokenizer, because
llama.cpp is given token ids. So it needs nothing but weights and config.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import gguf
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from c2t.errors import InputError, one_line
from c2t.models.target.families import head_dim
from pipelines.bench.programs import run, uneven

EXACT = "BF16"
ROUNDED = ("Q8_0", "Q4_1", "Q4_0")
BLOCK = 32  # weights of a row that share a scale
FORM = 1  # of the files; another number makes all of them again


def why_not(config: PreTrainedConfig) -> str | None:
    """Say why no file is made of a model with this config, in a few words; None if one is."""
    if config.model_type != "llama":
        return f"files are made of Llama models, not of {config.model_type}"
    if config.rope_parameters["rope_type"] != "default":
        return "files are made of models without scaled rotary positions"
    if config.attention_bias or config.mlp_bias:
        return "files are made of models without biases"
    return uneven((config.hidden_size, config.intermediate_size), BLOCK)


def write_exact(model: PreTrainedModel, path: Path) -> None:
    """Write a Llama model as a GGUF file: matrices in bf16, norms in float32. Weights in more bits are rounded."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    writer.add_rope_dimension_count(head_dim(config))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(key, try_suffixes=(".weight",))
        rows = turned(key, weight, config).float().cpu().numpy()
        if rows.ndim == 1:
            writer.add_tensor(name, rows)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def turned(key: str, weight: Tensor, config: PreTrainedConfig) -> Tensor:
    """Return a weight in llama.cpp's order of rows: it turns neighbouring numbers of a head, transformers those half a
    head apart."""
    if "q_proj" not in key and "k_proj" not in key:
        return weight
    heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
    return weight.view(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def files(model: PreTrainedModel, folder: Path, quantize: Sequence[str], threads: int) -> dict[str, Path]:
    """Return the file of each type, EXACT and ROUNDED, and make those that the folder does not have.

    quantize: the command that rounds a file, to which FROM, TO, TYPE and THREADS are added. A file appears complete or
    not at all. Raises InputError if one cannot be written, or if the command fails.
    """
    made = {kind: folder / f"{FORM}-{kind}.gguf" for kind in (EXACT, *ROUNDED)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, path in made.items():
            if path.is_file():
                continue
            new = path.with_name(f".{os.getpid()}-{path.name}")
            try:
                if kind == EXACT:
                    write_exact(model, new)
                else:
                    run([*quantize, str(made[EXACT]), str(new), kind, str(threads)])
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {one_line(error)}") from error
    return made
