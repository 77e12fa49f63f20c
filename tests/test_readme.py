"""The README is short, its links lead somewhere, and its Python runs."""

import re
import shlex
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from c2t.cli.app import app
from tests.marks import needs_smollm2

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_PYTHON = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")


def test_it_is_read_in_three_minutes() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8000


@needs_smollm2
def test_the_command_prints_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """In its last line seconds, and what hangs on the draft's arithmetic on this machine, may differ."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^    \$ c2t (.*\n(?:    .*\n)+)", readme, re.MULTILINE)
    for command, *shown, cost in (block.replace("\n    ", "\n").splitlines() for block in blocks):
        app(shlex.split(command), standalone_mode=False)
        said = capsys.readouterr()
        assert said.out.rstrip().splitlines() == shown
        pattern = re.sub(r"\d+", r"\\d+", re.escape(cost)).replace(r"\.\.\.", ".*")
        assert re.search(pattern, said.err)
    assert len(blocks) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_links_of_the_site_stay_in_it_and_anchors_are_headings(page: Path) -> None:
    """`mkdocs build --strict`, which `make docs` runs, refuses others."""
    for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")):
        there = (page.parent / target).resolve() if target else page
        assert there.is_relative_to(ROOT / "docs"), target
        headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, f"{target}#{anchor}"


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda path: path.name)
def test_python_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In their order, with one namespace per page, on the embedded pair. Hidden blocks check what the others made."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("C2T_HOME", raising=False)
    document = Sybil([PythonCodeBlockParser()]).parse(page)
    examples = list(document.examples())
    assert len(examples) == len(re.findall(r"```python|invisible-code-block: python", page.read_text(encoding="utf-8")))
    for example in examples:
        example.evaluate()
    if "print(" in document.text:
        assert capsys.readouterr().out.strip()
