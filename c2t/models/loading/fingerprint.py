"""Short hashes of checkpoints: what results and measured costs of a pair belong to."""

import hashlib
from pathlib import Path

from c2t.models.drafts.published_medusa import PICKLED
from c2t.models.loading.eagle_checkpoint import shared_layer
from c2t.models.loading.names import ENDINGS

_MIB = 2**20


def fingerprint(folder: Path) -> str:
    """Return a short hash of a checkpoint: names, sizes and bytes of its files, and of those of a head that it shares
    its layer with, without what only an ending of a draft's name brings in. In a file above 64 MiB it reads 64 KiB of
    every MiB, so that no large tensor changes unseen."""
    folder = folder.resolve()  # as the layer's folder is, so that both sort alike, however this path is written
    layer = shared_layer(folder)
    return hash_of([*folder.glob("config.json"), *_weights(folder), *([] if layer is None else _weights(layer))])


def weights_fingerprint(folder: Path) -> str:
    """Return `fingerprint` of a checkpoint's weights alone: its config.json names the version of transformers too."""
    return hash_of(_weights(folder))


def ending_files() -> set[str]:
    """Return the names of files in a draft's folder that only an ending of its name brings in."""
    return {ending.file for ending in ENDINGS.values() if ending.file}


def _weights(folder: Path) -> list[Path]:
    paths = [*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob(f"{Path(PICKLED).stem}*.pt")]
    return [path for path in paths if path.name not in ending_files()]


def hash_of(files: list[Path]) -> str:
    """Return a short hash of files, as `fingerprint` reads them."""
    digest = hashlib.sha256()
    for path in sorted(files):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for offset in range(0, size, _MIB):
                file.seek(offset)
                digest.update(file.read(_MIB if size <= 64 * _MIB else _MIB // 16))
    return digest.hexdigest()[:16]
