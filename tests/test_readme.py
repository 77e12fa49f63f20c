"""The README is short, its links lead somewhere, and its Python runs."""

import re
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_PYTHON = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")


def test_it_is_read_in_three_minutes() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8000


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


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
