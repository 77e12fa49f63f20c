"""A target that does not fit into memory is refused before it is loaded."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from c2t.errors import InputError
from c2t.models.gguf.stored import BLOCKS
from c2t.models.loading import memory
from c2t.models.loading.load import load_pair
from c2t.models.loading.memory import available, check_memory
from tests.toys import SIZES, language_model, save_language_model


def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / BLOCKS).parent.mkdir()
    for name, size in (("model.safetensors", 8), (BLOCKS, 2), ("consolidated.safetensors", 8)):  # Mistral's, not read
        with (tmp_path / name).open("wb") as file:
            file.truncate(size * memory.GIB)  # which takes no room on the disk
    monkeypatch.setattr(memory, "available", lambda: 10 * memory.GIB)
    for fits in (torch.bfloat16, "auto"):
        check_memory(tmp_path, fits, torch.bfloat16, as_stored=False)
    with pytest.raises(InputError) as caught:
        check_memory(tmp_path, torch.float32, torch.bfloat16, as_stored=False)
    said = "16.0 GiB of memory, and 10.0 are free; in GiB, less take bfloat16 8.0, its blocks as they are 2.0: choose"
    assert said in str(caught.value)
    monkeypatch.setattr(memory, "available", lambda: memory.GIB)
    with pytest.raises(InputError, match=r"its weights take 2\.0 GiB of memory, and 1\.0 are free; end other programs"):
        check_memory(tmp_path, "auto", torch.bfloat16, as_stored=True)
    monkeypatch.setattr(memory, "available", lambda: None)
    check_memory(tmp_path, torch.float32, torch.bfloat16, as_stored=False)


def test_loading_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available() is None or available() > 0
    save_language_model(tmp_path, language_model(LlamaConfig(**SIZES)))
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(InputError, match=r"0\.0 GiB of memory, and 0\.0 are free"):
        load_pair(target=tmp_path, draft="lookup", dtype=torch.float32)
