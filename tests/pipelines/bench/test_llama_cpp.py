"""llama.cpp in a process of its own: what is asked of it, what comes back, and when it is left out. A library in its
stead counts what is in its cache; where the real one is installed, it is asked too."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import LlamaConfig

from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.models.target import gguf_target
from c2t.sampling import Sampling
from pipelines.bench import llama_cpp as module
from pipelines.bench.contenders import Task
from pipelines.bench.forward import Other
from pipelines.bench.llama_cpp import LOOKUP, NAMES, missing, plain_of, start, start_rows
from pipelines.bench.programs import Program
from tests.models.gguf.small_files import CONFIGS
from tests.toys import language_model

HERE = Path(__file__).parent
TASK = Task(12, Sampling(), frozenset())


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker runs in this environment, with the library of `counting_llama.py`."""
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "llama_cpp.py").symlink_to(HERE / "counting_llama.py")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(module, "python", lambda: Path(sys.executable))
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def target(library: None) -> SimpleNamespace:
    model = SimpleNamespace(model=language_model(CONFIGS["llama"]), max_positions=2048)
    return SimpleNamespace(target=model, sources={"target": ("toy", "0123")})


@pytest.fixture
def ways(target: SimpleNamespace) -> Iterator[dict[str, list[Program]]]:
    with start(target) as contenders:
        yield contenders


def test_programs_answer_and_speculation_needs_fewer_forwards(ways: dict[str, list[Program]]) -> None:
    assert set(ways) == set(NAMES[1:])
    settings = [way.setting for way in ways["llama.cpp, Q8_0, prompt lookup"]]
    assert settings[0] == "3 tokens after 1 or more"
    assert len(set(settings)) == len(settings)
    for name, rivals in ways.items():
        [plain] = ways[plain_of(name)]
        expected = plain.write([[1, 2, 1, 2]], [0], TASK)
        assert 0 < expected.first < expected.seconds
        assert expected.rounds == expected.new - 1
        for way in rivals:
            written = way.write([[1, 2, 1, 2]], [0], TASK)
            assert written.tokens == expected.tokens
            assert written.rounds < expected.rounds or not name.endswith(LOOKUP)
            assert way.size.bits == plain.size.bits


def test_rows_are_timed_after_a_prefix(target: SimpleNamespace) -> None:
    with start_rows(target) as programs:
        assert [program.name for program in programs] == list(module.WAYS.values())
        for program in programs:
            way = Other(program, [1, 2, 3])
            assert all(seconds > 0 for rows in (1, 8, 1) for seconds in way(rows))


def test_a_process_that_fails_is_one_line(ways: dict[str, list[Program]]) -> None:
    [way] = ways["llama.cpp, BF16"]
    way.process.kill()
    way.process.wait()
    with pytest.raises(InputError, match=r"llama\.cpp, BF16 ended with code -9; run it to see why: ") as caught:
        way.write([[3]], [0], TASK)
    assert "\n" not in str(caught.value)


def test_why_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "python", lambda: tmp_path / "bin" / "python")
    pair = SimpleNamespace(target=SimpleNamespace(config=CONFIGS["llama"]))
    assert f"get it with: {module.HOW_TO_GET}" in missing(pair)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert missing(pair) is None
    assert missing(pair, batch=2) == "it is measured on one text at a time"
    assert missing(pair, temperature=0.5) == "it is measured on greedy texts"
    others = {
        "not of qwen3": CONFIGS["qwen3"],
        "without scaled rotary positions": LlamaConfig(rope_scaling={"rope_type": "linear", "factor": 2.0}),
        "without biases": LlamaConfig(attention_bias=True),
        "72 inputs are no multiple of 32": LlamaConfig(hidden_size=72, num_attention_heads=4),
    }
    for said, config in others.items():
        assert said in missing(SimpleNamespace(target=SimpleNamespace(config=config)))


def test_the_command_that_builds_it_names_the_release_and_this_processor() -> None:
    assert f"{module.PACKAGE}=={module.VERSION}" in module.HOW_TO_GET
    assert "-DGGML_NATIVE=ON" in module.HOW_TO_GET
    assert "--no-binary" in module.HOW_TO_GET


@pytest.mark.slow
@pytest.mark.skipif(not module.python().is_file(), reason="llama.cpp is not built")
@pytest.mark.skipif(not gguf_target.home().is_dir(), reason="the target of smollm2 is not installed")
def test_llama_cpp_itself_answers() -> None:
    pair: Pair = load_pair(gguf_target.PAIR)
    ids = pair.tokenizer("The capital of France is")["input_ids"]
    with start(pair) as contenders:
        [exact] = contenders["llama.cpp, BF16"]
        assert pair.tokenizer.decode(exact.write([ids], [0], TASK).tokens[0]).startswith(" Paris")
        bits = [contenders[name][0].size.bits for name in module.WAYS.values()]
        assert bits == sorted(bits, reverse=True)
    worker = subprocess.run([*module.worker(), "quantize"], capture_output=True, text=True)
    assert worker.returncode == 1
