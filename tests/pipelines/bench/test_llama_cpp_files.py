"""GGUF files for llama.cpp: of a toy they hold its weights, and c2t's own reader finds them; the library rounds them as
the `gguf` package does, where it is built."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel

from c2t.errors import InputError
from c2t.models.gguf.reader import read_header
from c2t.models.gguf.weights import weights_of
from pipelines.bench import llama_cpp
from pipelines.bench.llama_cpp_files import EXACT, ROUNDED, files, write_exact
from pipelines.bench.sizes import Size, size_of_file, size_of_target
from tests.models.gguf.small_files import CONFIGS, SIZES
from tests.toys import Target, language_model

COPY = "import shutil, sys; shutil.copyfile(sys.argv[1], sys.argv[2]); open(sys.argv[2], 'ab').write(b' ')"
TIED = LlamaConfig(**SIZES, tie_word_embeddings=True)


@pytest.fixture
def model() -> PreTrainedModel:
    return language_model(CONFIGS["llama"])


@pytest.mark.parametrize("config", [CONFIGS["llama"], TIED], ids=["own head", "tied"])
def test_a_file_holds_the_models_weights(config: LlamaConfig, tmp_path: Path) -> None:
    model = language_model(config).bfloat16()
    write_exact(model, tmp_path / "toy.gguf")
    file, state = read_header(tmp_path / "toy.gguf"), model.state_dict()
    assert file.architecture == "llama"
    weights = weights_of(file, config)
    assert {weight.name for weight in weights} == set(state) - ({"lm_head.weight"} if config is TIED else set())
    for weight in weights:
        stored = torch.cat(list(weight.converted(file, torch.bfloat16))).view(weight.shape)
        assert torch.equal(stored, state[weight.name]), weight.name


def test_the_size_is_of_what_a_step_reads(tmp_path: Path) -> None:
    for config in (CONFIGS["llama"], TIED):
        target = Target(language_model(config).bfloat16())
        write_exact(target.model, tmp_path / "toy.gguf")
        size = size_of_file(tmp_path / "toy.gguf")
        assert size == size_of_target(target)._replace(bytes=size.bytes)  # panels may be filled up
        assert size.bits == 16
    assert Size(9, 16).bits == 4.5


def test_files_are_made_and_stay(model: PreTrainedModel, tmp_path: Path) -> None:
    command = [sys.executable, "-c", COPY]
    made = files(model, tmp_path / "files", command, 1)
    assert list(made) == [EXACT, *ROUNDED]
    exact = made[EXACT].read_bytes()
    assert all(made[kind].read_bytes() == exact + b" " for kind in ROUNDED)
    assert sorted(tmp_path.glob("files/*")) == sorted(made.values())
    made["Q4_0"].write_bytes(b"here")
    assert files(model, tmp_path / "files", ["no such command"], 1)["Q4_0"].read_bytes() == b"here"


def test_a_command_that_fails_leaves_no_file(model: PreTrainedModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ended with code 3: no room") as caught:
        files(model, tmp_path, [sys.executable, "-c", "import sys; print('no room', file=sys.stderr); sys.exit(3)"], 1)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [f"1-{EXACT}.gguf"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write"):
        files(model, tmp_path / "file", [], 1)


@pytest.mark.slow
@pytest.mark.skipif(not llama_cpp.python().is_file(), reason="llama.cpp is not built")
def test_the_library_rounds_as_its_package_says(model: PreTrainedModel, tmp_path: Path) -> None:
    made = files(model, tmp_path, [*llama_cpp.worker(), "quantize"], 1)
    name = "blk.0.attn_q.weight"
    readers = {kind: {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors} for kind, path in made.items()}
    exact = gguf.dequantize(readers[EXACT][name].data, gguf.GGMLQuantizationType.BF16)
    for kind in ROUNDED:
        tensor = readers[kind][name]
        assert tensor.tensor_type == gguf.GGMLQuantizationType[kind]
        if kind == "Q8_0":  # the search for scales of 4 bits differs
            assert np.array_equal(tensor.data, gguf.quantize(exact, tensor.tensor_type))
    bits = [size_of_file(path).bits for path in made.values()]
    assert bits == sorted(bits, reverse=True)
