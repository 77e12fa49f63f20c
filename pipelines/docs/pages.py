"""Pages with rendered parts, which stand between `<!-- table: NAME -->` (or `value`) and `<!-- end -->`."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
RENDERED = re.compile(r"(<!-- (?:table|value): ([\w.-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"^ *\|.*\d.*$", re.MULTILINE)


def pages(root: Path = ROOT) -> list[Path]:
    """Return README, every page of docs/, and the READMEs of the packages in integrations/."""
    packages = sorted((root / "integrations").glob("*/README.md"))
    return [root / "README.md", *sorted((root / "docs").rglob("*.md")), *packages]


def names(text: str) -> list[str]:
    """Return the names of a page's rendered parts."""
    return [part.group(2) for part in RENDERED.finditer(text)]


def render(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with every marked part rendered; KeyError for a name that `parts` does not have."""
    return RENDERED.sub(lambda part: part.group(1) + parts[part.group(2)]() + part.group(4), text)


def typed_numbers(text: str) -> list[str]:
    """Return the lines of tables that hold a digit and are not rendered."""
    return NUMBER.findall(RENDERED.sub("", text))
