"""Figures of sweeps: a PNG with every family's points and front."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from c2t.errors import InputError
from c2t.study.plots import draw_panel, plot_fronts
from c2t.study.points import Condition
from tests.study.test_pareto import point

CONDITION = Condition("tiny", "t", "d", "draft", "float32", 0.4, 0, 64, None, ("f.jsonl",), 4, "x")
POINTS = [point(name, tau, size * tau) for name, size in (("c2t", 8), ("eagle2", 10), ("oracle", 3)) for tau in (1, 2)]
BEATEN = point("eagle2", 1.5, 40)


def test_curves_are_the_fronts_and_all_points_are_drawn() -> None:
    panel = Figure().subplots()
    draw_panel(panel, [*POINTS, BEATEN])
    lines = {line.get_label(): line for line in panel.lines}
    assert list(lines) == ["c2t", "eagle2", "oracle"]
    assert lines["eagle2"].get_xydata().tolist() == [[10, 1], [20, 2]]
    assert lines["oracle"].get_linestyle() == "--"
    assert lines["c2t"].get_linewidth() > lines["eagle2"].get_linewidth()
    assert [len(dots.get_offsets()) for dots in panel.collections] == [2, 3, 2]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["c2t", "eagle2", "oracle"]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.slow
def test_a_png_with_a_panel_for_each_condition(tmp_path: Path, count: int) -> None:
    conditions = {Condition(**{**vars(CONDITION), "seed": seed}): POINTS for seed in range(count)}
    path = plot_fronts(conditions, tmp_path / "new" / "figure.png")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    width, height = (int.from_bytes(data[place : place + 4], "big") for place in (16, 20))
    assert (width, height) == ((720, 540) if count == 1 else (2160, 1080))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write a figure"):
        plot_fronts({CONDITION: POINTS}, tmp_path)
