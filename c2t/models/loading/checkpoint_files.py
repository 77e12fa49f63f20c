"""Checks of a language model's small files before transformers reads them: a checkpoint may come from anybody."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from safetensors import safe_open
from transformers.utils import cached_file

from c2t.errors import InputError, refusing
from c2t.models.loading.weight_files import INDEX, files_of_model
from c2t.models.target.target import check_family
from c2t.storage.checked import OPEN, from_json, read_file

FOREIGN_CODE = "auto_map"  # entry that names Python files to import
WEIGHTS_A_BYTE = 4  # most of any quantisation; above it a config describes more than its files can hold
Size = Annotated[int, Field(ge=1, le=2**24)]
Positions = Annotated[int, Field(ge=1, le=2**31)]
Layers = Annotated[int, Field(ge=1, le=1024)]


@dataclass(frozen=True)
class Sizes:
    """Sizes in the config.json of a language model, by the names of Llama and of GPT-2."""

    __pydantic_config__ = OPEN
    hidden_size: Size | None = None
    n_embd: Size | None = None
    intermediate_size: Size | None = None
    n_inner: Size | None = None
    num_hidden_layers: Layers | None = None
    n_layer: Layers | None = None
    num_attention_heads: Size | None = None
    n_head: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size | None = None
    max_position_embeddings: Positions | None = None
    n_positions: Size | None = None

    @property
    def weights(self) -> int:
        """A lower bound of the number of weights, from the sizes that are given."""
        hidden = self.hidden_size or self.n_embd or 0
        heads, inner = (
            (self.num_attention_heads or 0) * (self.head_dim or 0),
            self.intermediate_size or self.n_inner or 0,
        )
        layers = self.num_hidden_layers or self.n_layer or 0
        return hidden * ((self.vocab_size or 0) + (self.n_positions or 0) + 2 * layers * (max(hidden, heads) + inner))


@dataclass(frozen=True)
class Tokenizer:
    """Entries of a tokenizer_config.json that transformers uses without looking."""

    __pydantic_config__ = OPEN
    model_max_length: Annotated[int | float, Field(ge=1)] | None = None


@dataclass(frozen=True)
class Generation:
    """Entries of a generation_config.json that c2t reads."""

    __pydantic_config__ = OPEN
    eos_token_id: int | list[int] | None = None


SCHEMAS = {"config.json": Sizes, "tokenizer_config.json": Tokenizer, "generation_config.json": Generation}


def check_files(source: str | Path, trust_remote_code: bool) -> None:
    """Raise InputError for a folder or Hub id whose files ask to run code without `trust_remote_code`, describe
    sizes that its weights cannot have or a family that c2t does not know, are no JSON, or are damaged weights. Missing
    files are no error here."""
    family, config = None, None
    for name, schema in SCHEMAS.items():
        path = _find(source, name)
        if path is None:
            continue
        raw = from_json(dict[str, Any], read_file(path), path)
        if raw.get(FOREIGN_CODE) and not trust_remote_code:
            raise InputError(
                f"{path} asks to run its own Python code ({FOREIGN_CODE}); if you trust its author, allow it "
                "with --trust-remote-code (trust_remote_code=True in Python)"
            )
        entries = from_json(schema, read_file(path), path)
        if isinstance(entries, Sizes):
            _check_sizes(entries, path)
            family, config = raw.get("model_type"), path
    if family:  # after all files: their code is the better reason to refuse an unknown one
        check_family(family, f"{config}: ")
    if config:
        _check_weights(config.parent, whole=Path(source).is_dir())


def _find(source: str | Path, name: str) -> Path | None:
    """Return a file of a folder or of a Hub repository, None if it is not there or not within reach."""
    if Path(source).is_dir():
        return Path(source) / name if (Path(source) / name).exists() else None
    try:
        file = cached_file(str(source), name)
    except (OSError, ValueError):  # transformers says why when it loads the model
        return None
    return Path(file) if file else None


def _check_sizes(sizes: Sizes, path: Path) -> None:
    files = [*path.parent.glob("*.safetensors"), *path.parent.glob("*.bin")]
    bytes_there = sum(file.stat().st_size for file in files)
    if files and sizes.weights > WEIGHTS_A_BYTE * bytes_there:
        raise InputError(
            f"{path} describes at least {sizes.weights:,} weights, more than its files of "
            f"{bytes_there:,} bytes can hold; copy the files again"
        )


def _check_weights(folder: Path, whole: bool) -> None:
    """Raise InputError that names the first damaged file; transformers does not say which of the shards it is. whole:
    the folder is complete, so that a shard or an index which is not there is refused, too."""
    index = folder / f"model.safetensors{INDEX}"
    for file in sorted(files_of_model(folder)):
        if file.exists():
            with refusing(f"{file}: damaged, copy it again"), safe_open(file, "pt"):
                pass
        elif whole and index.exists():
            raise InputError(f"{index}: {file.name} is not there; copy all of its files")
        elif whole and any(folder.glob("model-*-of-*.safetensors")):
            raise InputError(f"{index} is not there, which says what the shards next to it hold; copy it, too")
