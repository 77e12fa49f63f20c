"""Checkpoints on the Hub: their files on this machine, and what getting them would download."""

from pathlib import Path

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from c2t.errors import InputError

PATTERNS = ("*.json", "*.safetensors", "*.bin", "medusa_lm_head*.pt")  # files of a head on the Hub
TOKENIZER = ("*.model", "*.txt", "*.jinja")  # further files of a language model
SUBFOLDERS = "*/*"  # of a repository: other formats, training states
_OUT_OF_REACH = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError)


def download_size(hub_id: str, model: bool) -> int | None:
    """Return the bytes that loading a Hub repository would download, a language model or a head: 0 if all is on this
    machine, None if that cannot be known because the Hub is not within reach."""
    patterns = [*PATTERNS, *TOKENIZER] if model else list(PATTERNS)
    try:
        files = snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=[SUBFOLDERS], dry_run=True)
    except _OUT_OF_REACH:
        return None
    if model and any(file.filename.endswith(".safetensors") for file in files):
        # transformers reads these only, and no second copy of the weights, as Mistral's consolidated.safetensors.
        left_out = (".bin", "consolidated.safetensors")
        files = [file for file in files if not file.filename.endswith(left_out)]
    return sum(file.file_size or 0 for file in files if file.will_download)


def fetch(path_or_id: str | Path, patterns: tuple[str, ...] = PATTERNS) -> Path:
    """Return the local folder of a checkpoint: the folder itself, or the downloaded Hub repository of that id.
    InputError if it is neither."""
    if Path(path_or_id).is_dir():
        return Path(path_or_id)
    try:
        return Path(snapshot_download(str(path_or_id), allow_patterns=list(patterns), ignore_patterns=[SUBFOLDERS]))
    except _OUT_OF_REACH as error:
        raise InputError(
            f"{path_or_id}: neither a folder nor a Hub repository within reach ({type(error).__name__})"
        ) from error


def on_this_machine(path_or_id: str | Path) -> Path | None:
    """Return the local folder of a checkpoint without downloading any: the folder itself, or that of a Hub repository
    whose config.json is there; None if it is neither."""
    if Path(path_or_id).is_dir():
        return Path(path_or_id)
    try:
        config = try_to_load_from_cache(str(path_or_id), "config.json")
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None
