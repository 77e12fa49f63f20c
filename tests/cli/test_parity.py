"""The command parity on small models: what it prints, its exit status, and what it refuses."""

import json
from pathlib import Path

import pytest

from c2t.kernels.native import kernels
from c2t.storage import paths
from c2t.study.parity import run
from tests.cli.test_app import c2t, good, refused

SMALL = ["--prefix", "20", "--rows", "1,5"]


def target() -> Path:
    return paths.resolve("tiny", "target")


@pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
def test_what_c2t_runs_is_equal(tmp_path: Path) -> None:
    lines = ["M = 1: logits of 0 of 1 nodes differ", "M = 5: logits of 0 of 5 nodes differ"]
    file = tmp_path / "results.jsonl"
    assert good("parity", "tiny", *SMALL, "--json", file).splitlines() == lines
    (line,) = map(json.loads, file.read_text().splitlines())
    assert [row["differing"] for row in line["figures"]["rows"]] == [0, 0]
    assert line["configuration"]["kernels"]
    assert good("parity", target(), "--kernels", "--dtype", "float32", *SMALL, "--shape", "chain").splitlines() == lines


@pytest.mark.parametrize("options", [["--dtype", "bfloat16"], ["--attn", "eager", "--shape", "chain"]])
def test_transformers_layers_are_compared(options: list[str], tmp_path: Path) -> None:
    """Whether they differ depends on the machine; the exit status says which."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"turns": ["def add(a, b):"]}\n{"turns": ["import os", "and"]}\n')
    done = c2t("parity", target(), *SMALL, *options, "--prompts", prompts, "--json", "-")
    *lines, line = done.stdout.splitlines()
    rows = json.loads(line)["figures"]["rows"]
    assert [row["nodes"] for row in rows] == [2, 10]
    assert done.exit_code == any(row["differing"] for row in rows), done.output
    for row in rows:
        assert any(said.startswith(f"M = {row['rows']}: logits of {row['differing']} of") for said in lines)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--rows", "1,x"], "--rows 1,x: give whole numbers"),
        (["--rows", "0"], "rows = 0 must be"),
        (["--prefix", "100000"], "positions; choose a smaller --prefix"),
        (["--dtype", "int8"], "give --kernels as well"),
        (["--attn", "nothing"], "cannot be loaded"),
        (["--device", "nowhere"], "no device is called"),
        (["--prefix", "0"], "--prefix"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: list[str], line: str) -> None:
    assert line in refused("parity", target(), *options)


def test_a_forward_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(run, "parity", fails)
    assert "its forward fails (CUDA out of memory)" in refused("parity", target())


def test_an_option_that_nothing_would_read_is_refused() -> None:
    assert "--attn eager is for models that transformers runs" in refused("parity", "tiny", "--attn", "eager")


def test_no_model_is_refused(tmp_path: Path) -> None:
    assert "config.json" in refused("parity", tmp_path)
    assert "is called 'tinny'" in refused("parity", "tinny")
    assert "no such folder: ./nothere" in refused("parity", "./nothere")
