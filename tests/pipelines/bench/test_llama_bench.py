"""llama-bench next to the loop of the worker: both are asked for the same work. A script and a library answer in their
stead."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from c2t.errors import InputError
from pipelines.bench import llama_bench as module
from pipelines.bench.contenders import Written

TOOL = """#!{python}
import json, sys
assert sys.argv[-6:] == ["-n", "96", "-r", "5", "-o", "json"], sys.argv
print(json.dumps([{{"avg_ts": 50.0, "model_filename": sys.argv[sys.argv.index("-m") + 1]}}]))
"""


class Loop:
    """A worker of 100 tokens a second, whose first one takes three."""

    name = "llama.cpp, Q4_0"

    def write(self, prompts, numbers, task) -> Written:
        assert (prompts, task.max_new_tokens) == ([[1]], module.TOKENS + 1)
        return Written([[7] * task.max_new_tokens], 3.0, 3.0 + module.TOKENS / 100)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything that the command needs but the tool, which is to be at this path."""

    @contextmanager
    def start_rows(_):
        yield [Loop()]

    for name, value in {"missing": None, "files_of": {"Q4_0": Path("a.gguf")}}.items():
        monkeypatch.setattr(module.llama_cpp, name, lambda _, value=value: value)
    monkeypatch.setattr(module.llama_cpp, "start_rows", start_rows)
    monkeypatch.setattr(module, "check_idle", lambda: None)
    monkeypatch.setattr(module, "load_pair", lambda name: SimpleNamespace(name=name, sources={}))
    monkeypatch.setattr(module, "tool", lambda: tmp_path / "llama-bench")
    return tmp_path / "llama-bench"


def test_both_are_read_for_the_same_work(tool: Path, tmp_path: Path) -> None:
    tool.write_text(TOOL.format(python=sys.executable))
    tool.chmod(0o755)
    module.main("tiny", tmp_path / "lines.jsonl")
    [line] = map(json.loads, (tmp_path / "lines.jsonl").read_text().splitlines())
    assert line["figures"]["way"] == Loop.name
    assert [round(line["figures"][name]) for name in ("tool", "loop")] == [50, 100]
    assert line["configuration"]["threads"]


def test_without_the_tool_a_line_says_how_to_get_it(tool: Path) -> None:
    with pytest.raises(InputError, match=f"llama-bench is not there; get it with: .*{module.VERSION}"):
        module.main("tiny", None)
