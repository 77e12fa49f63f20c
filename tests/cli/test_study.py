"""c2t sweep and c2t plot on small pairs, and one line for what a user can get wrong."""

import json
import shutil
from pathlib import Path

import pytest

from c2t.classifier import TreeClassifier
from tests.cli.test_app import good, refused

GRID = "c2t:beta=0.4|0.45|0.47,K=3,levels=3,eagle2:K=3,levels=2|3,N=4|9"
FAST = ["--grid", GRID, "--limit", "4", "--max-new-tokens", "8", "--taus", "0.1,0.2,9"]


@pytest.fixture(scope="module")
def swept(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A home with a swept pair, and what the command said. Do not write there."""
    home = shutil.copytree(small_home, tmp_path_factory.mktemp("swept") / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C2T_HOME", str(home))
        TreeClassifier().save_pretrained(home / "checkpoints" / "local" / "tiny" / "classifier")
        return home, good("sweep", *FAST, "--json", "-")


@pytest.fixture
def home_swept(swept: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_HOME", str(swept[0]))
    return swept[0]


def test_sweep_ends_with_a_table_a_headline_and_a_line(swept: tuple[Path, str]) -> None:
    home, said = swept
    line = json.loads(said.splitlines()[-1])
    comparison = line["figures"]["comparison"]
    assert (line["command"], line["figures"]["points"], line["configuration"]["grid"]) == ("sweep", 7, GRID)
    assert [ratio["tau"] for ratio in comparison["ratios"]["eagle2"]] == [0.1, 0.2, 9]
    assert comparison["ratios"]["eagle2"][2]["ratio"] is None
    assert "gamma of c2t / gamma of" in said
    assert comparison["headline"] in said
    points = home / "data" / "sweep" / "tiny.jsonl"
    assert len(points.read_text().splitlines()) == 7
    assert points.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_plot_finds_taus_in_reach_where_all_policies_stay_below_1(home_swept: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (home_swept / "data" / "sweep" / "tiny.jsonl").read_text().splitlines()[3:]]
    for number, line in enumerate(lines):
        family = ("c2t", "eagle2")[number % 2]
        line["figures"] |= {"family": family, "policy": f"{family}:{number}", "rounds": [100] * 4}
        line["figures"]["accepted"] = [30 + 15 * number] * 4
    file = tmp_path / "low.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = good("plot", file, "--json", "-")
    [comparison] = json.loads(said.splitlines()[-1])["figures"]["comparisons"]
    assert comparison["taus"] == [0.45, 0.5, 0.55, 0.6]
    assert all(at["ratio"] is not None for at in comparison["ratios"]["eagle2"])
    assert "strongest rival: eagle2; gamma of c2t is " in said


def test_sweep_again_counts_nothing_and_says_so(home_swept: Path, tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    shutil.copy(home_swept / "data" / "sweep" / "tiny.jsonl", file)
    before = file.read_text()
    assert "7 of 7 points were in the file already" in good("sweep", *FAST, "--out", file)
    assert file.read_text() == before


def test_plot_compares_what_the_sweep_compared(home_swept: Path, swept: tuple[Path, str], tmp_path: Path) -> None:
    points = home_swept / "data" / "sweep" / "tiny.jsonl"
    said = good("plot", points, "--taus", "0.1,0.2,9", "--out", tmp_path / "a.png", "--json", "-")
    line, first = json.loads(said.splitlines()[-1]), json.loads(swept[1].splitlines()[-1])
    assert line["figures"]["comparisons"] == [first["figures"]["comparison"]]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_several_files_are_several_panels(home_swept: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    for file, temperature in ((first, "0"), (second, "1")):
        few = ["--grid", "chain:length=2", "--limit", "2", "--max-new-tokens", "4"]
        good("sweep", *few, "--out", file, "--temperature", temperature)
    said = good("plot", first, second)
    assert said.count("nothing to compare: run a grid with c2t") == 2
    assert (tmp_path / "plot.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "--grid", "eagle:N=4"], "no policy is called 'eagle'; known: plain"),
        (["sweep", "--grid", "eagle2:N=4|x"], "eagle2: N = 'x' must be a whole number"),
        (["sweep", "--grid", "c2t:beta=0.1|2"], "beta = 2.0 must be between 0 and 1"),
        (["sweep", "--grid", ""], "no policy is called ''"),
        (["sweep", "--taus", "1,x"], "--taus 1,x: give numbers"),
        (["sweep", "--limit", "0"], "limit = 0"),
        (["sweep", "--temperature", "-1", "--grid", "chain"], "temperature = -1"),
        (["sweep", "--grid", "chain", "--out", "points.png"], "cannot be the figure (.png)"),
        (["sweep", "--grid", "chain", "--out", "p.jsonl", "--json", "p.jsonl"], "or --json's file too"),
        (["sweep", "--out", "/proc/p.jsonl"], "cannot write results to /proc/p.jsonl: "),
        (["plot", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["plot", "--taus", ""], "--taus"),
    ],
)
def test_wrong_arguments(home_swept: Path, arguments: list[str], message: str) -> None:
    assert message in refused(*arguments)


def test_files_of_another_format(home_swept: Path, tmp_path: Path) -> None:
    prompts = home_swept / "data" / "prompts" / "tiny" / "code.jsonl"
    before = prompts.read_text()
    assert "line 1: not a point of a sweep" in refused("plot", prompts)
    assert "line 1: not a point of a sweep" in refused("sweep", *FAST, "--out", prompts)
    assert prompts.read_text() == before
    points = home_swept / "data" / "sweep" / "tiny.jsonl"
    assert "is a file of points" in refused("plot", points, "--out", points)
    before, notes = points.read_text(), tmp_path / "notes.txt"
    notes.write_text("a note")
    assert "is a file of points" in refused("plot", points, "--json", points)
    figure = tmp_path / "a.png"
    assert "or the figure: give another name" in refused("plot", points, "--out", figure, "--json", figure)
    assert "give a name that ends with .png" in refused("plot", points, "--out", notes)
    assert (points.read_text(), notes.read_text(), figure.exists()) == (before, "a note", False)
    (tmp_path / "empty.jsonl").write_text("")
    assert "holds no points" in refused("plot", tmp_path / "empty.jsonl")


def test_sweep_checks_its_file_before_it_loads(home: Path) -> None:
    assert "cannot write results to .: Is a directory" in refused("sweep", "--pair", "nowhere", "--out", ".")


def test_plot_before_any_sweep(home: Path) -> None:
    assert "make it with c2t sweep" in refused("plot")
