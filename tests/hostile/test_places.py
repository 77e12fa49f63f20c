"""Commands write where they were told to, and nowhere else; none of them asks the network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# All commands in one process, which notes every call of the network's: what a library does by itself is seen, too.
CODE = """if True:
    import json, shlex, sys
    asked = []
    harmless = ("socket.__new__", "socket.gethostname")
    sys.addaudithook(lambda event, _: asked.append(event) if event.startswith("socket.") else None)
    from typer.testing import CliRunner
    from c2t.cli.app import app
    for line in sys.stdin.read().splitlines():
        done = CliRunner().invoke(app, shlex.split(line))
        assert done.exit_code == 0, (line, done.output)
    print(json.dumps([event for event in asked if event not in harmless]))
"""
FEW = "--pair tiny --limit 4 --max-new-tokens 4"
COMMANDS = [
    f"harvest {FEW} --k 3 --levels 3 --out OUT/rows",
    "train OUT/rows --out OUT/classifier --epochs 1 --json OUT/lines.jsonl",
    "finetune OUT/rows --from OUT/classifier --out OUT/tuned --epochs 1",
    "export-hub --pair tiny --draft lookup --policy chain --out OUT/hub",
    "generate a --pair tiny --max-new-tokens 4 --classifier OUT/classifier --json OUT/lines.jsonl",
    f"sweep {FEW} --grid 'eagle2:N=4|8' --out OUT/points.jsonl",
    "plot OUT/points.jsonl --out OUT/figure.png",
    "view a --pair tiny --policy chain --max-new-tokens 4 --out OUT/page.html",
    f"bench {FEW} --timed 0 --policies plain --json OUT/lines.jsonl",
    f"tune {FEW} --policies chain:length=1",
    "info tiny",
    f"harvest {FEW} --k 3 --levels 3",
]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_commands_write_where_they_were_told_to_and_ask_no_network(home: Path, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("user", "here", "temporary", "cache", "out")}
    for place in places.values():
        place.mkdir()
    before = files(home)
    variables = {"HOME": "user", "TMPDIR": "temporary", "C2T_CACHE": "cache"}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HF_"))},
        **{variable: str(places[name]) for variable, name in variables.items()},
        **{"C2T_HOME": str(home), "PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(tmp_path / "matplotlib")},
    }
    done = subprocess.run(
        [sys.executable, "-B", "-c", CODE],
        input="\n".join(COMMANDS).replace("OUT", str(places["out"])),
        env=environment,
        cwd=places["here"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    assert files(places["user"]) <= {".local/state/c2t/kernels.key"}
    assert files(places["here"]) | files(places["temporary"]) == set()
    assert files(places["cache"]), "texts, costs and kernels"
    assert {name.split("/")[0] for name in files(places["out"])} == {
        *("rows", "classifier", "tuned", "hub", "lines.jsonl", "points.jsonl", "figure.png", "points.png", "page.html")
    }
    new = files(home) - before
    assert new
    assert {name for name in new if not name.startswith("data/harvest/tiny/")} == set()
