"""OpenVINO GenAI in processes of its own: what is asked of it, what comes back, and when it is left out. A library in
its stead answers; where the real one is installed, it is asked too."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from c2t.errors import InputError
from c2t.models.drafts.heads import PARTS
from c2t.models.loading.load import load_pair
from c2t.models.target import gguf_target
from c2t.sampling import Sampling
from c2t.storage.paths import find
from pipelines.bench import openvino_genai as module
from pipelines.bench import openvino_genai_worker as worker
from pipelines.bench.contenders import Task
from pipelines.bench.forward import Other
from pipelines.bench.openvino_genai import NAMES, missing, plain_of, start, start_rows
from pipelines.bench.openvino_genai_files import BITS, exported, write_head
from tests.pipelines.bench import recorded_openvino as library
from tests.pipelines.bench.answers import answered

HERE = Path(__file__).parent
TASK = Task(12, Sampling(), frozenset({3}))
EXPORTER = """#!{python}
import pathlib, sys
folder = pathlib.Path(sys.argv[-1])
assert "--weight-format" in sys.argv and pathlib.Path(sys.argv[sys.argv.index("--model") + 1]).is_dir()
(folder / "openvino_model.bin").write_bytes(bytes(100))
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A pair without a draft. The worker runs in this environment, with the library of `recorded_openvino.py`."""
    (tmp_path / "openvino_genai.py").symlink_to(HERE / "recorded_openvino.py")
    (tmp_path / "openvino.py").symlink_to(HERE / "recorded_openvino.py")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "python").symlink_to(sys.executable)
    exporter = binaries / "optimum-cli"
    exporter.write_text(EXPORTER.format(python=sys.executable))
    exporter.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.setattr(module, "python", lambda: binaries / "python")
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    model = torch.nn.Linear(10, 10)
    return SimpleNamespace(name="none", target=SimpleNamespace(model=model), sources={"target": (str(tmp_path), "01")})


def test_programs_answer_with_the_settings_of_each_way(target: SimpleNamespace) -> None:
    with start(target) as ways:
        assert set(ways) == {name for name in NAMES[1:] if "EAGLE-3" not in name}  # the pair has no such head
        assert all(way.size.bits == 8.0 for way, _ in answered(ways, plain_of, TASK)), "100 bytes of 10 x 10 weights"


def test_forwards_are_timed_by_the_runtime(target: SimpleNamespace) -> None:
    with start_rows(target) as programs:
        assert [program.name for program in programs] == [f"{module.OPENVINO}, {kind}" for kind in BITS]
        for program in programs:
            for prefix, rows in (([1, 2], 4), ([1, 2], 1), ([3], 2)):
                assert all(seconds > 0 for seconds in Other(program, prefix)(rows))


def test_timed_rows_follow_the_prefix() -> None:
    request = library.InferRequest()
    prefix = worker.Prefix(request, [1, 2, 3])
    for rows, tokens in ((4, [1, 2, 3, 1]), (1, [1])):
        assert prefix.time_rows(rows)["seconds"] > 0
        assert request.text == [1, 2, 3, *tokens]


@pytest.mark.parametrize("way", [worker.PLAIN, worker.LOOKUP, worker.EAGLE3])
def test_the_library_gets_the_settings(way: str) -> None:
    pipeline = worker.load(library, "folder", 2, way, "head")
    folder, device, options = pipeline.made
    assert (folder, device, options.pop("INFERENCE_NUM_THREADS")) == ("folder", "CPU", 2)
    wanted = {
        worker.PLAIN: {"ATTENTION_BACKEND": "PA"},
        worker.LOOKUP: {"prompt_lookup": True},
        worker.EAGLE3: {"draft_model": ("head", "CPU", {"INFERENCE_NUM_THREADS": 2})},
    }
    assert options == wanted[way]
    for options in module.settings_of(way).values():
        reply = worker.answer(library, pipeline, library.Tensor, [1, 2], 5, [3], options)
        config = vars(pipeline.config)
        assert config.items() >= options.items()
        assert config["stop_token_ids"] == {3}
        assert not config["do_sample"]
        assert not config["apply_chat_template"]
        assert (reply["rounds"] is None) == bool(options)


def test_why_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "python", lambda: tmp_path / "bin" / "python")
    (tmp_path / "model.safetensors").touch()

    def pair(folder: Path = tmp_path, **fields: object) -> SimpleNamespace:
        config = LlamaConfig(**({"hidden_size": 64, "intermediate_size": 128, "tie_word_embeddings": True} | fields))
        return SimpleNamespace(target=SimpleNamespace(config=config), sources={"target": (str(folder), "01")})

    assert f"get it with: {module.HOW_TO_GET}" in missing(pair())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert missing(pair()) is None
    assert missing(pair(), batch=2) == "it is measured on one text at a time"
    assert missing(pair(), temperature=0.5) == "it is measured on greedy texts"
    assert "one file of weights" in missing(pair(tmp_path / "none"))
    assert "whose LM head is their embedding" in missing(pair(tie_word_embeddings=False))
    assert missing(pair(intermediate_size=72)) == "72 inputs are no multiple of 64"


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys, pathlib; (pathlib.Path(sys.argv[-1]) / 'part').mkdir(); sys.exit('no space')",
    ]
    with pytest.raises(InputError, match="ended with code 1: no space"):
        exported(tmp_path, tmp_path / "cache" / "1-int8", command, BITS["int8"])
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_head_is_written_as_published_ones_are(tmp_path: Path) -> None:
    pair = load_pair("tiny", dtype=torch.float32)
    head = tmp_path / "head"
    head.mkdir()
    kept = torch.arange(3, pair.target.config.vocab_size, 7)
    seen = torch.zeros(pair.target.config.vocab_size, dtype=torch.bool)
    seen[kept] = True
    save_file({"t2d": seen, "fc.weight": torch.ones(2, 6)}, head / "model.safetensors")
    (head / "config.json").write_text(json.dumps({"hidden_size": 2, "architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "out").mkdir()
    write_head(head, pair.target, tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    embedding = pair.target.embed_tokens.weight.to(torch.bfloat16)
    assert torch.equal(weights["embed_tokens.weight"], embedding)
    assert torch.equal(weights["lm_head.weight"], embedding[kept])
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert fields["architectures"] == ["LlamaForCausalLMEagle3"]
    assert fields["hidden_size"] == 2


@pytest.mark.slow
@pytest.mark.skipif(not module.python().is_file(), reason="OpenVINO is not installed")
@pytest.mark.skipif(not gguf_target.home().is_dir(), reason="the target of smollm2 is not installed")
def test_openvino_itself_answers() -> None:
    pair = load_pair(gguf_target.PAIR)
    assert find(pair.name, PARTS["eagle3"])
    ids = pair.tokenizer("The capital of France is")["input_ids"]
    with start(pair) as contenders:
        assert set(contenders) == set(NAMES[1:])
        [plain] = contenders["OpenVINO, int8"]
        assert pair.tokenizer.decode(plain.write([ids], [0], TASK).tokens[0]).startswith(" Paris")
        written = contenders["OpenVINO, int8, EAGLE-3"][-1].write([ids], [0], TASK)
        assert pair.tokenizer.decode(written.tokens[0]).startswith(" Paris")
