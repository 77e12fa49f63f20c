"""The README's Python blocks run as they stand, on the embedded pair."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from c2t import TreeClassifier

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("C2T_HOME", raising=False)


def test_decoding_in_three_lines(capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[0], names := {})
    assert capsys.readouterr().out.strip()
    assert names["decoder"].policy.beta == TreeClassifier.from_pretrained("tiny").config.beta == 0.1


def test_the_classifier_in_plain_numpy() -> None:
    exec(BLOCKS[1], names := {})
    nodes = SimpleNamespace(
        log_joint=torch.tensor(names["P"]).log(), entropy=torch.tensor(names["H"]), depth=torch.tensor(names["d"])
    )
    with torch.no_grad():
        expected = TreeClassifier.from_pretrained("tiny")(nodes)
    assert names["confidence"] == pytest.approx(expected.numpy(), abs=1e-6)
    assert names["keep"].tolist() == (expected >= 0.1).tolist()
