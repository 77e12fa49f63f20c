"""The notebooks: stripped of outputs, and every cell runs.

Cells run in this process and not by nbmake, which starts a kernel: prompts and texts are replaced by fewer and shorter
ones here, and at full length a notebook takes minutes.
"""

import json
from pathlib import Path

import matplotlib
import pytest
import torch

from c2t import prompts
from c2t.harvest import harvest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "found"),
    [("rows", "result.metrics.average_precision > 0"), ("gain", "len(gain.read(gain.RESULTS)) == 7")],
)
def test_cells_run(name: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few and short texts."""
    monkeypatch.setattr(prompts, "spread", lambda found, limit: found[:: max(1, len(found) // min(limit, 6))][:6])
    settings = harvest.HarvestSettings
    monkeypatch.setattr(harvest, "HarvestSettings", lambda **_: settings(max_new_tokens=12))
    matplotlib.use("Agg")
    names: dict[str, object] = {}
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    with torch.enable_grad():  # a notebook may turn gradients off: on leaving they are as they were
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)  # noqa: S102 - our own notebook
    assert eval(found, names)  # noqa: S307 - our own notebook
