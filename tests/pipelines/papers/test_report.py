"""What a report was made of, and which reports a file has already."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from c2t.errors import InputError
from c2t.storage.results import append_line, result_line
from pipelines.papers.report import Reproduction, configuration, made_before
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import SMALL


def test_other_weights_and_prompts_are_another_configuration(
    study: Study, small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, prompts = tmp_path / "home", tmp_path / "mine.jsonl"
    shutil.copytree(small_home / "checkpoints" / "tiny", home / "checkpoints" / "relative")
    monkeypatch.setenv("C2T_HOME", str(home))
    prompts.write_text(json.dumps({"question_id": 1, "turns": ["def add("]}))
    mine = Study(study.pair, replace(study.settings, same="relative", prompts=(prompts,)))
    first = configuration(mine)
    assert json.loads(json.dumps(first)) == first == configuration(mine)
    assert (first["dtype"], first["device"]) == ("float32", "cpu")
    assert first["weights"]["same"]
    prompts.write_text(json.dumps({"question_id": 1, "turns": ["def sub("]}))
    second = configuration(mine)
    with (home / "checkpoints" / "relative" / "draft" / "config.json").open("a") as file:
        file.write(" ")
    third = configuration(mine)
    assert [name for name in first if first[name] != second[name]] == ["prompt_files"]
    assert [name for name in first if second[name] != third[name]] == ["weights"]


def test_a_report_in_another_dtype_is_made_again(here: Path) -> None:
    reproduction = Reproduction(lambda study: study.pair.dtype)
    made = reproduction.make(SMALL)
    assert reproduction.make(SMALL, [made.configuration]) is None
    again = reproduction.make({**SMALL, "dtype": "bfloat16"}, [made.configuration])
    assert (made.report, again.report) == ("float32", "bfloat16")
    old = {name: value for name, value in made.configuration.items() if name != "dtype"}  # of an older version
    assert reproduction.make(SMALL, [old]) is not None


def test_lines_may_hold_any_character(tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    for title in ("a\u2028b", "a\x85b"):
        append_line(out, result_line("table1", {"title": title}, {"pair": title}))
    assert made_before(out) == {"table1": [{"pair": "a\u2028b"}, {"pair": "a\x85b"}]}
    assert made_before(tmp_path / "nothing.jsonl") == {}


@pytest.mark.parametrize("line", [b'{"turns": ["x"]}', b"[1]", b"3", b'{"command": "x"}', b"\xff"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, line: bytes) -> None:
    out = tmp_path / "lines.jsonl"
    out.write_bytes(line + b"\n")
    with pytest.raises(InputError, match=r"lines\.jsonl.* no .*; choose another file with --out"):
        made_before(out)
