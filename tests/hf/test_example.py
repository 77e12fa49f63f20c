"""The example of the documentation runs, on the embedded model."""

import runpy
from pathlib import Path

import pytest

from c2t.storage.paths import find

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(find("smollm2", "target") is None, reason="the target of smollm2 is not installed here")
def test_both_write_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "generate_with_transformers.py"))
    example["main"]("Why is the sky blue?", max_new_tokens=12)
    *text, same, speeds = capsys.readouterr().out.splitlines()
    assert "".join(text)
    assert same == "same text: yes"
    assert "tokens/s; with trees:" in speeds
