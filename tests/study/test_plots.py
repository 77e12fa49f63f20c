"""Figures of sweeps and of tuning: what they draw, what they say, and names that do not meet."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from c2t.errors import InputError
from c2t.output import plot_style
from c2t.policies import Eagle2
from c2t.study import pareto
from c2t.study.plots import draw_panel, draw_ratio, headline, plot_fronts, plot_speeds
from c2t.study.points import Condition
from tests.rounding import figure
from tests.study.test_autotune import tuned
from tests.study.test_pareto import point

CONDITION = Condition("tiny", "t", "d", "draft", "float32", 0.4, 0, 64, None, ("f.jsonl",), 4, "x")
POINTS = [point(name, tau, size * tau) for name, size in (("c2t", 8), ("eagle2", 10), ("oracle", 3)) for tau in (1, 2)]
POINTS += [point("sequoia", tau, 20 * tau) for tau in (1, 2)]
BEATEN = point("eagle2", 1.5, 40)


def test_curves_are_the_fronts_and_all_points_are_drawn() -> None:
    panel = Figure().subplots()
    names = draw_panel(panel, [*POINTS, BEATEN])
    lines = {line.get_label(): line for line in panel.lines}
    assert list(lines) == ["c2t", "eagle2", "oracle", "sequoia"]
    assert lines["eagle2"].get_xydata().tolist() == [[10, 1], [20, 2]]
    assert lines["oracle"].get_linestyle() == "--"
    assert lines["c2t"].get_linewidth() == lines["eagle2"].get_linewidth() > lines["sequoia"].get_linewidth()
    assert [len(dots.get_offsets()) for dots in panel.collections] == [2, 3, 2, 2]
    assert [name[:3] for name in names] == [
        ("c2t", 16, 2),
        ("eagle2: best untrained", 20, 2),
        ("oracle: the limit", 6, 2),
        ("sequoia", 40, 2),
    ]
    assert len({(line.get_color(), line.get_marker()) for line in panel.lines}) == 4
    assert len({line.get_marker() for line in panel.lines}) == 4, "grey keeps them apart"


def test_the_title_is_what_the_points_say() -> None:
    assert headline(POINTS).startswith(
        "At tau 1.5 c2t verifies 0.80 (0.80-0.80) times the tokens of\nthe best untrained"
    )
    assert headline(POINTS).endswith("tree, eagle2")
    assert headline(POINTS[2:]) == headline([POINTS[0], POINTS[4]]) == "tau and gamma of each family"


def test_the_ratio_has_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = Figure().subplots()
    draw_ratio(panel, POINTS)
    assert panel.lines[1].get_ydata() == figure(np.full(25, 0.8))
    assert len(panel.collections) == 1
    alone = Figure().subplots()
    draw_ratio(alone, POINTS[:2])
    assert not alone.get_visible()
    assert pareto.SUBJECT == "c2t"


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.slow
def test_a_png_with_a_panel_for_each_condition(tmp_path: Path, count: int) -> None:
    conditions = {Condition(**{**vars(CONDITION), "seed": seed}): POINTS for seed in range(count)}
    path = plot_fronts(conditions, tmp_path / "new" / "figure.png")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == ((768, 720) if count == 1 else (1536, 1440))
    assert path.stat().st_size < 100_000


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write a figure"):
        plot_fronts({CONDITION: POINTS}, tmp_path)


def test_speeds_say_prediction_and_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(plot_style, "save", lambda figure, path: drawn.append(figure) or path)
    rows = (Eagle2(), 6, 1.5), (Eagle2(N=8), 30, 0.4)
    assert plot_speeds(tuned(*rows), tmp_path / "speed.png") == tmp_path / "speed.png"
    [panel] = drawn[0].axes
    title = panel.get_title(loc="left")
    said = "eagle2:N=60, 1.50 times as fast as plain decoding"
    assert title == f"{said}\nbatch size 1, T = 0"
    points = next(line for line in panel.lines if line.get_label() == "eagle2")
    assert points.get_xydata().tolist() == [[6, 1.5], [30, 0.4]]
    assert [text.get_text() for text in panel.texts] == ["eagle2", "plain"]


@pytest.mark.parametrize("heights", [[0.0, 0.01, 0.02, 0.5], [0.3] * 5, [0.1, 0.9]])
def test_names_keep_their_distance_and_order(heights: list[float]) -> None:
    placed = plot_style.spread(heights, 0.1)
    assert np.diff(placed).min() > 0.1 - 1e-9
    assert np.mean(placed) == figure(np.mean(heights))
    assert plot_style.spread([0.1, 0.9], 0.1) == [0.1, 0.9]


def luminance(colour: str) -> float:
    """Return the luminance of a colour by WCAG."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_can_be_read_on_the_card_and_the_first_two_in_grey() -> None:
    """Contrast of 3 is what WCAG asks of lines."""
    contrasts = [1.05 / (luminance(colour) + 0.05) for colour in plot_style.COLOURS]
    assert min(contrasts) > 3
    assert contrasts[0] / contrasts[1] > 1.8


def test_an_old_picture_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plot_style.save(Figure(), tmp_path / "one.png")
    before = path.read_bytes()

    draw = Image.Image.save

    def full(image: Image.Image, place: object, **how: object) -> None:
        if not isinstance(place, Path):  # matplotlib's own, into memory
            draw(image, place, **how)
            return
        place.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(InputError, match="no space left"):
        plot_style.save(Figure(), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["one.png"]
    with pytest.raises(InputError, match="it is no plain file"):
        plot_style.save(Figure(), tmp_path)
