"""ONNX Runtime GenAI in processes of its own: what is asked of it, what comes back, and when it is left out. A library
in its stead answers; where the real one is installed, it is asked too."""

import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from c2t.models.loading.load import load_pair
from c2t.models.target import gguf_target
from c2t.sampling import Sampling
from pipelines.bench import onnx_genai as module
from pipelines.bench import onnx_genai_worker as worker
from pipelines.bench.contenders import Task
from pipelines.bench.forward import Other
from pipelines.bench.onnx_genai import LOOKUP, NAMES, missing, plain_of, start, start_rows
from pipelines.bench.onnx_genai_files import BITS, BLOCK, SCALE, exported, size_of
from pipelines.bench.sizes import Size, size_of_target
from tests.models.gguf.small_files import CONFIGS
from tests.pipelines.bench import recorded_onnx as library
from tests.pipelines.bench.answers import answered
from tests.pipelines.bench.counting_llama import VOCABULARY, following
from tests.toys import Target, language_model

HERE = Path(__file__).parent
TASK = Task(12, Sampling(), frozenset())
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)
BUILDER = """
import argparse, pathlib
parser = argparse.ArgumentParser()
for name in ("input", "output", "precision", "execution_provider", "cache_dir"):
    parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
parser.add_argument("--extra_options", nargs="+")
given = parser.parse_args()
assert given.input.is_dir()
(given.output / "options").write_text(" ".join(given.extra_options))
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A pair without a draft. The worker runs in this environment, with the library of `recorded_onnx.py`."""
    models = tmp_path / "onnxruntime_genai" / "models"
    models.mkdir(parents=True)
    (models.parent / "__init__.py").symlink_to(HERE / "recorded_onnx.py")
    (models / "builder.py").write_text(BUILDER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.setattr(module, "python", lambda: Path(sys.executable))
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    return SimpleNamespace(target=Target(language_model(CONFIGS["llama"])), sources={"target": (str(tmp_path), "01")})


def greedy(prompt: list[int], limit: int, eos: list[int]) -> list[int]:
    """The text by the library's law."""
    text = list(prompt)
    while len(text) - len(prompt) < limit and (text == prompt or text[-1] not in eos):
        text.append(following(text))
    return text[len(prompt) :]


def test_programs_answer_with_the_settings_of_each_way(target: SimpleNamespace, tmp_path: Path) -> None:
    with start(target) as ways:
        assert set(ways) == set(NAMES[1:])
        assert all(way.size == plain.size for way, plain in answered(ways, plain_of, TASK))
    built = {path.parent.name: path.read_text() for path in tmp_path.glob("cache/onnx/*/*/options")}
    assert sorted(built) == [f"1-{kind}-{logits}" for kind in ("int4", "int8") for logits in ("all", "last")]
    assert built["1-int4-last"].endswith("prune_lm_head=true")
    assert built["1-int8-all"].endswith("prune_lm_head=false")


def test_forwards_are_timed_with_the_logits_of_all_tokens(target: SimpleNamespace) -> None:
    with start_rows(target) as programs:
        assert [program.name for program in programs] == [f"{module.ONNX}, {kind}" for kind in BITS]
        for program in programs:
            assert program.process.args[-2].endswith("-all")
            assert all(seconds > 0 for seconds in Other(program, [1, 2])(4))


def test_timed_rows_leave_the_prefix() -> None:
    prefix = worker.Prefix(library, worker.load(library, "folder", 1), [1, 2, 3])
    for rows in (4, 1, worker.ROOM):
        assert prefix.time_rows(rows)["seconds"] > 0
        assert library.Generator.last.text == [1, 2, 3]
    assert library.Generator.last.parts == [3, 4, 1, worker.ROOM]


@given(TOKENS, st.integers(1, 24), st.lists(st.integers(0, VOCABULARY - 1), max_size=2))
def test_texts_end_and_forwards_are_counted(prompt: list[int], limit: int, eos: list[int]) -> None:
    model = worker.load(library, "folder", 1)
    for lookup in ("", LOOKUP):
        for options in module.settings_of(lookup).values():
            reply = worker.answer(library, model, prompt, limit, eos, options)
            assert reply["tokens"] == greedy(prompt, limit, eos)
            assert reply["rounds"] == library.Generator.last.forwards
            assert 0 < reply["first"] <= reply["seconds"]
            assert library.Generator.last.params.speculation == options


def test_a_text_ends_with_an_eos_of_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "EOS", 1)
    reply = worker.answer(library, worker.load(library, "folder", 1), [1, 2], 5, [])
    assert reply["tokens"] == [1]


def test_requests_and_answers_are_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    asked = [
        {"prompt": [1, 2], "limit": 4, "eos": [], "temperature": 0, "seed": 3, "options": {}},
        {"prefix": [1, 2], "rows": 4},
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(line) + "\n" for line in asked)))
    worker.main(library, ["folder", "1"])
    about, text, rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert about == {"version": "0"}
    assert text["tokens"] == greedy([1, 2], 4, [])
    assert set(text) == {"tokens", "first", "seconds", "rounds"}
    assert set(rows) == {"seconds"}


def test_a_model_has_its_threads_and_they_do_not_spin_after_a_forward() -> None:
    config = worker.load(library, "folder", 2).config
    assert config.folder == "folder"
    session = config.options["model"]["decoder"]["session_options"]
    assert session == {"intra_op_num_threads": 2, "session.force_spinning_stop": "1"}


def test_why_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "python", lambda: tmp_path / "bin" / "python")
    (tmp_path / "model.safetensors").touch()

    def pair(config: object = None, folder: Path = tmp_path) -> SimpleNamespace:
        config = config or LlamaConfig(hidden_size=128, num_attention_heads=2, intermediate_size=192)
        return SimpleNamespace(target=SimpleNamespace(config=config), sources={"target": (str(folder), "01")})

    assert f"get it with: {module.HOW_TO_GET}" in missing(pair())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert missing(pair()) is None
    assert missing(pair(), batch=2) == "it is measured on one text at a time"
    assert missing(pair(), temperature=0.5) == "it is measured on greedy texts"
    assert missing(pair(CONFIGS["qwen3"])) == "models are made of Llama targets, not of qwen3"
    assert "one file of weights" in missing(pair(folder=tmp_path / "none"))
    for odd in ({"hidden_size": 72}, {"intermediate_size": 72}, {"head_dim": 36}):
        fields = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 192} | odd
        assert missing(pair(LlamaConfig(**fields))) == "72 inputs are no multiple of 64"


def test_the_command_that_gets_it_names_the_releases() -> None:
    assert f"{module.PACKAGE}=={module.VERSION}" in module.HOW_TO_GET
    assert "torch==2.13.0" in module.HOW_TO_GET


def test_the_size_counts_an_lm_head_in_8_bits() -> None:
    target = Target(language_model(CONFIGS["llama"]))
    weights, head = size_of_target(target).weights, target.lm_head.weight.numel()
    scales = weights // BLOCK * SCALE
    assert size_of(target, "int8") == Size((8 * weights + scales) // 8, weights)
    assert size_of(target, "int4") == Size((4 * (weights + head) + scales) // 8, weights)


@pytest.mark.slow
@pytest.mark.skipif(not module.python().is_file(), reason="ONNX Runtime is not installed")
@pytest.mark.skipif(not gguf_target.home().is_dir(), reason="the target of smollm2 is not installed")
def test_onnx_runtime_itself_answers() -> None:
    pair = load_pair(gguf_target.PAIR)
    ids = pair.tokenizer("The capital of France is")["input_ids"]
    task = TASK._replace(eos=pair.target.eos)
    with start(pair) as contenders:
        for name, rivals in contenders.items():
            written = rivals[0].write([ids], [0], task)
            assert "Paris" in pair.tokenizer.decode(written.tokens[0]), name
            assert written.rounds
    source, mark = pair.sources["target"]
    folder = module.cache() / "onnx" / f"{module.VERSION}-{mark}"
    for kind in BITS:
        stored = (exported(Path(source), folder, kind, True, []) / "model.onnx.data").stat().st_size
        size, embedding = size_of(pair.target, kind), 4 * pair.target.embed_tokens.weight.numel()
        # Next to the weights there are norms, and a table of rotary positions: 3 % of the target of smollm2 in 4 bits.
        assert size.bytes <= stored - embedding < 1.04 * size.bytes
