"""Code that comes with a checkpoint is not run, whatever stdin says, unless it is asked for; code in a pickle never."""

import ast
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from c2t.cli.app import app
from c2t.errors import InputError
from c2t.models.loading.load import load_pair

ROOT = Path(__file__).parents[2]
CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Path(r"{mark}").write_text("executed")


class Config(LlamaConfig): ...


class Model(LlamaForCausalLM):
    config_class = Config


class Tokenizer(PreTrainedTokenizerFast): ...
"""
MAPS = {
    "config.json": {"AutoConfig": "foreign.Config", "AutoModelForCausalLM": "foreign.Model"},
    "tokenizer_config.json": {"AutoTokenizer": [None, "foreign.Tokenizer"]},
}


@pytest.fixture(params=MAPS)
def file(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def target(home: Path, tmp_path: Path, file: str) -> Path:
    """The target of `tiny`, one of whose files asks for code that leaves a mark where it runs."""
    target = home / "checkpoints" / "tiny" / "target"
    (target / "foreign.py").write_text(CODE.format(mark=tmp_path / "mark"))
    raw = json.loads((target / file).read_text())
    (target / file).write_text(json.dumps(raw | {"auto_map": MAPS[file]}))
    return target


@pytest.mark.parametrize("kind", ["llama", "foreign"])
def test_foreign_code_is_refused_though_stdin_says_yes(target: Path, tmp_path: Path, file: str, kind: str) -> None:
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    draft = target.with_name("draft")
    for words in (
        ["--target", str(target), "--draft", str(draft)],
        ["--pair", "tiny"],
        ["--pair", "tiny", "--draft", str(target)],
    ):
        done = CliRunner().invoke(app, ["generate", "--policy", "plain", *words], input="y\n" * 99)
        assert done.exit_code == 2, done.output
        [line] = done.stderr.splitlines()
        assert str(target / file) in line
        assert "allow it with --trust-remote-code" in line
    with pytest.raises(InputError, match="trust_remote_code=True in Python"):
        load_pair("tiny")
    assert not (tmp_path / "mark").exists()


def test_foreign_code_runs_where_it_is_asked_for(target: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    load_pair("tiny", trust_remote_code=True)
    assert (tmp_path / "mark").read_text() == "executed"


def test_every_call_says_whether_it_trusts() -> None:
    """transformers would ask on stdin otherwise."""
    silent = []
    for path in [*(ROOT / "c2t").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("Auto"):
                said = ast.unparse(call)
                without_files = ".from_config(" in said or ".for_model(" in said
                if "trust_remote_code" not in said and not without_files and "**where" not in said:
                    silent.append(f"{path}: {said}")
    assert silent == []


def test_code_in_a_targets_pickle_is_not_run(home: Path, tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "mark",)

    target, weights = home / "checkpoints" / "tiny" / "target", {}
    for path in target.glob("*.safetensors"):
        weights |= load_file(path)
        path.unlink()
    torch.save(weights, target / "pytorch_model.bin")
    load_pair("tiny")
    torch.save(weights | {"more": Touch()}, target / "pytorch_model.bin")
    with pytest.raises(InputError, match="the language model cannot be loaded"):
        load_pair("tiny")
    assert not (tmp_path / "mark").exists()


def test_no_file_is_unpickled() -> None:
    unpickled = []
    for path in [*(ROOT / "c2t").rglob("*.py"), *(ROOT / "integrations").rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            said = ast.unparse(call) if isinstance(call, ast.Call) else ""
            if said.startswith(("torch.load(", "pickle.", "joblib.load(")) and "weights_only=True" not in said:
                unpickled.append(f"{path}: {said}")
            if "allow_pickle" in said:
                unpickled.append(f"{path}: {said}")
    assert unpickled == []
