"""Language models and their tokenizers from folders or the Hub."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from c2t.errors import InputError, refusing
from c2t.models.gguf.stored import StoredBlocks, stored_dtype
from c2t.models.loading.checkpoint_files import check_files
from c2t.models.loading.memory import check_memory
from c2t.models.target.default_dtype import default_dtype, has_bf16, is_bf16
from c2t.models.target.packed_model import PackedModel
from c2t.models.target.target import Target
from c2t.models.target.tensor_parallel import distributed_config, gather_shared

Dtype = torch.dtype | str
# Dtypes that weights are rounded to, on a CPU.
ROUNDED = {torch.int8: "int8", torch.int4: "int4"}  # type: ignore[attr-defined]
AS_STORED = "as stored"  # dtype of a converted GGUF: its blocks as they are, where it has some; else DEFAULT
_NOT_LOADED = "{}: the language model cannot be loaded"
DEFAULT = "default"  # dtype of a target that `default_dtype` chooses; "auto" is transformers' word for the checkpoint's


def load_target(
    source: str,
    device: torch.device,
    dtype: Dtype,
    device_map: str | dict | None,
    trust_remote_code: bool,
    tensor_parallel: bool = False,
) -> Target:
    """Load a language model; arguments are those of `c2t.models.loading.load.load_pair`. InputError for one that cannot
    be loaded, or that c2t does not run."""
    check_files(source, trust_remote_code)
    blocks, by_default = stored_dtype(Path(source)) if dtype in (AS_STORED, *ROUNDED) else None, dtype == AS_STORED
    as_stored = blocks is not None and dtype in (AS_STORED, blocks)
    dtype = (blocks or DEFAULT) if by_default else dtype
    where: dict[str, Any] = {"device_map": device_map} if device_map else {}
    if dtype == torch.float64:
        where["experts_implementation"] = "eager"  # of mixtures of experts; torch's grouped products take no float64
    with refusing(_NOT_LOADED.format(source)):
        kind = default_dtype(source, trust_remote_code) if dtype == DEFAULT else dtype
        if kind in ROUNDED:  # what it is rounded from; a file's own numbers are read from it, and no weight
            kind = torch.bfloat16 if is_bf16(source, trust_remote_code) else torch.float32
            kind = "auto" if as_stored else kind
        if device.type == "cpu" and not (device_map or tensor_parallel) and Path(source).is_dir():
            config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
            check_memory(Path(source), kind, config.dtype or torch.float32, as_stored)
        if tensor_parallel:
            where["distributed_config"] = distributed_config(source, trust_remote_code)
    model = load_model(source, kind, trust_remote_code, **where)
    if tensor_parallel:
        gather_shared(model)
    if as_stored and by_default and (why := PackedModel.why_not_rounded(model)):
        warnings.warn(f"{source}: its blocks become numbers in bfloat16 or float32: {why}", stacklevel=3)
        return load_target(source, device, DEFAULT, device_map, trust_remote_code)
    if (dtype, kind) == (DEFAULT, torch.bfloat16) and not PackedModel.serves(model):
        model = model.float()  # torch is slower in bf16, and rounds a tree and plain decoding apart
    if model.dtype == torch.bfloat16 and dtype not in ROUNDED and device.type == "cpu" and not has_bf16():
        how = "torch imitates it slowly: float32 is faster here"
        if PackedModel.serves(model):
            how = "c2t's kernels compute in float32, on weights that stay in bf16"
        warnings.warn(f"{source}: this processor has no bf16 arithmetic; {how}", stacklevel=3)
    placed = model if device_map or tensor_parallel else model.to(device)
    stored = StoredBlocks(placed, Path(source)) if as_stored else None
    return Target(placed, rounded=dtype in ROUNDED, int4=ROUNDED.get(dtype) == "int4", stored=stored)


def load_model(source: str, dtype: Dtype, trust_remote_code: bool, **options: Any) -> PreTrainedModel:
    """Load a model of transformers from checked files (`check_files`), with options of its `from_pretrained`.
    InputError for one that cannot be loaded."""
    with refusing(_NOT_LOADED.format(source)), _no_report():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by their names
            trust_remote_code=trust_remote_code,
            **options,
        )
    model, loading = loaded
    model.requires_grad_(False)
    if loading["missing_keys"]:  # transformers would fill them with random numbers
        names = ", ".join(sorted(loading["missing_keys"])[:3])
        raise InputError(
            f"{source}: {len(loading['missing_keys'])} weights are missing ({names}); copy the files again"
        )
    if more := sorted(loading["unexpected_keys"]):  # transformers says so in its table
        names = ", ".join(more[:3])
        warnings.warn(
            f"{source}: {len(more)} weights of its files are not read ({names}): config.json describes none such",
            stacklevel=3,
        )
    for name, stored, described in sorted(loading["mismatched_keys"]):
        raise InputError(
            f"{source}: {name} is {list(stored)} in its files and {list(described)} by config.json; copy them again"
        )
    return model


@contextmanager
def _no_report() -> Iterator[None]:
    """Silence transformers' table of missing weights: they are refused in one line instead."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


def read_tokenizer(source: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Load a tokenizer; InputError for one that cannot be."""
    with refusing(f"{source}: no tokenizer can be loaded; copy tokenizer.json and tokenizer_config.json there"):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # of some families transformers makes one without files
        raise InputError(
            f"{source}: its tokenizer has special tokens only: copy tokenizer.json and tokenizer_config.json of the "
            "model there"
        )
    return tokenizer


def load_tokenizer(source: str, target: Target, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Load a target's tokenizer; InputError for one that does not work, or has more tokens than the target."""
    tokenizer = read_tokenizer(source, trust_remote_code)
    # its steps come out of its file, and run for the first time
    with refusing(f"{source}: the tokenizer does not work"):
        tokenizer.decode(tokenizer("a b").input_ids)
    if len(tokenizer) > target.config.vocab_size:
        raise InputError(
            f"{source}: the tokenizer has {len(tokenizer)} tokens, the target {target.config.vocab_size}; "
            "take the tokenizer that the target was trained with"
        )
    return tokenizer
