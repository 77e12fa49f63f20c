"""The notebooks: their outputs are kept, whole and small, and every cell runs.

Cells run in this process, without Jupyter: prompts and texts are replaced by fewer and shorter ones here, and at full
length a notebook takes minutes. `make notebooks` runs them as a reader would and keeps what they show.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

from c2t.harvest import harvest
from c2t.replay import prompts
from c2t.storage.paths import find

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 500_000  # bytes of a notebook with its pictures


def code_of(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_one_run_from_top_to_bottom(path: Path) -> None:
    cells = code_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/html"} & shown, "a picture, or a tree drawn in the page"
    assert path.stat().st_size < LARGEST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("rows", "result.metrics.average_precision > 0 and steps[1]._repr_html_().count('<svg') == 1"),
        pytest.param(
            "decode",
            "best._repr_html_().count('<svg') == 1 and min(map(len, seconds.values())) == 3",
            marks=pytest.mark.skipif(find("smollm2", "target") is None, reason="smollm2 is not set up here"),
        ),
    ],
)
def test_cells_run(name: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few and short texts."""
    monkeypatch.setattr(prompts, "spread", lambda found, limit: found[:: max(1, len(found) // min(limit, 6))][:6])
    settings = harvest.HarvestSettings
    monkeypatch.setattr(harvest, "HarvestSettings", lambda **_: settings(max_new_tokens=12))
    matplotlib.use("Agg")
    names: dict[str, object] = {}
    with torch.enable_grad(), matplotlib.rc_context():  # a notebook may change both: on leaving they are as they were
        for cell in code_of(FOLDER / f"{name}.ipynb"):
            exec("".join(cell["source"]), names)  # noqa: S102 - our own notebook
    assert eval(found, names)  # noqa: S307 - our own notebook
