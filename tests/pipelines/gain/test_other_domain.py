"""The command on few and short texts, the embedded pair's own head in place of one that takes half an hour to make."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.gain import other_domain
from pipelines.gain.__main__ import app


def test_ratios_are_shown_beside_scaled_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_domain, "MAIN", ("logistic, log P",))
    monkeypatch.setattr(other_domain, "SCALES", (1.0, 2.0))
    monkeypatch.setattr(other_domain, "RECIPE", replace(other_domain.PAIRS["tiny"], domains=("code",)))
    monkeypatch.setattr(other_domain, "make_head", lambda minutes: None)
    arguments = ["other-domain", "--limit", "6", "--max-new-tokens", "20", "--build", str(tmp_path)]
    said = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    rows = {name: values for name, *values in (re.split(r"\s{2,}", line.strip()) for line in said.splitlines())}
    assert rows["logistic, log P"]
    assert rows["threshold on P, head of all domains"] == rows["threshold on P, logits x 1"]  # the same head here
    assert rows["threshold on P, logits x 2"] != rows["threshold on P, logits x 1"]
