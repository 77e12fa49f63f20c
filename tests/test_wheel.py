"""The wheel works by itself: installed into an environment of its own, outside of the checkout, without a $C2T_HOME."""

import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import c2t
from c2t.kernels.compiled import SOURCES
from c2t.storage.paths import find

ROOT = Path(__file__).parents[1]
BUILD = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
SMOLLM2 = ("/draft", "/draft_medusa", "/classifier", "/classifier_conditional")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return folder / run(sys.executable, "-c", BUILD, folder, cwd=ROOT).split()[-1]


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The `bin` of a new environment with c2t in it; torch and the others are those that run this test."""
    environment = wheel.parent / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=wheel.parent)
    (packages,) = environment.glob("lib/python*/site-packages")
    # A folder named in a .pth is searched, but the .pth files in it, that of an editable c2t among them, are not read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", wheel, cwd=wheel.parent)
    return environment / "bin"


def test_the_wheel_holds_the_embedded_pairs_and_nothing_made_on_this_machine(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.removeprefix("c2t/shipped/").rsplit("/", 1)[0] for name in names if "/shipped/" in name}
    smollm2 = {f"checkpoints/smollm2{part}" for part in ("", *SMOLLM2)}
    assert shipped == {place for place in smollm2 if (ROOT / place).is_dir()} | {
        "data/prompts/smollm2",
        "data/prompts/smollm2/harvest",
        "checkpoints/tiny",
        "checkpoints/tiny/classifier",
        "checkpoints/tiny/draft",
        "checkpoints/tiny/target",
        "data/prompts/tiny",
        "data/prompts/tiny/harvest",
    }
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"c2t"}
    viewer = {name for name in names if name.startswith("c2t/viewer/") and not name.endswith(".py")}
    parts = ("page.html", "page.css", "page.js", "rounds.js", "d3-hierarchy-3.1.2.min.js", "d3-hierarchy-3.1.2.LICENSE")
    assert viewer == {f"c2t/viewer/{part}" for part in parts}
    assert "c2t/py.typed" in names, "type checkers read the annotations"
    sources = {str(place.relative_to(ROOT)) for place in SOURCES.iterdir()}
    assert sources <= set(names), "kernels are compiled at first use"
    assert wheel.stat().st_size < 30 * 2**20


@pytest.mark.slow
def test_commands_and_the_three_lines_of_python_run_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    package = next(installed.parent.glob("lib/python*/site-packages/c2t"))
    before = {path for path in package.rglob("*") if "__pycache__" not in str(path)}
    shown = run(installed / "c2t", "info", "tiny", cwd=tmp_path, COLUMNS="400")
    for part in ("target", "draft", "classifier"):
        assert str(package / "shipped" / "checkpoints" / "tiny" / part) in shown
    assert "draft_lm" not in shown
    written = run(
        installed / "c2t", "generate", "--pair", "tiny", "def add(a, b):", "--max-new-tokens", "8", cwd=tmp_path
    )
    assert written.startswith("def add(a, b):")
    assert {path for path in package.rglob("*") if "__pycache__" not in str(path)} == before
    if target := find("smollm2", "target"):  # or it would be converted for half a minute; test_pairs.py has that
        converted = tmp_path / ".local" / "share" / "c2t" / "checkpoints" / "local" / "smollm2" / "target"
        converted.parent.mkdir(parents=True)
        converted.symlink_to(target)
    block = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    further = [
        "import runpy, sys, c2t.storage.paths as p",
        "print(p.__file__, p.checkout(), p.root(), sep=chr(10))",
        "sys.argv[1:] = ['--version']",
        "runpy.run_module('c2t', run_name='__main__')",  # as python -m c2t does
    ]
    shown = run(installed / "python", "-c", "\n".join([block, *further]), cwd=tmp_path)
    *text, module, checkout, root, version = shown.splitlines()
    assert text
    assert Path(module) == package / "storage" / "paths.py"
    assert (checkout, root) == ("None", str(tmp_path / ".local" / "share" / "c2t"))
    assert version == f"c2t {c2t.__version__}"


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_every_package_is_installed_by_version_and_hash(name: str) -> None:
    """torch is none of them: its builds differ from index to index."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    entries = re.split(r"\n(?=\S)", text.strip())
    pinned = re.compile(r"[\w.-]+==\S+( ; [^\\\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+")
    assert [entry for entry in entries if not pinned.fullmatch(entry)] == []
    assert not any(entry.startswith("torch==") for entry in entries)
    makefile = (ROOT / "Makefile").read_text()
    assert f"--require-hashes -r {name}" in makefile
    assert re.search(r"^TORCH := torch==\d", makefile, re.MULTILINE)
