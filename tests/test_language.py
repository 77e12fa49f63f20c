"""Docstrings say what a thing does: those of public functions start with a verb."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEVER = {"What", "Whether", "Of", "Where", "Who"}  # riddles, in front of anything
NO_VERB = {"A", "An", "The"}  # nouns, which may stand in front of modules, classes and properties
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    """Yield everything in a module that has a docstring, and the docstring's first word."""
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield node, text.split()[0].strip(",:;.")


def is_property(node: FUNCTIONS) -> bool:
    """Return True for a function that is read like an attribute, so that a noun describes it."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def riddles(source: str) -> list[str]:
    """Return name and first word of the docstrings that do not say what a thing does."""
    found = []
    for node, word in documented(ast.parse(source)):
        name = getattr(node, "name", "the module")
        does = isinstance(node, FUNCTIONS) and not name.startswith("_") and not is_property(node)
        if word in NEVER or (does and word in NO_VERB):
            found.append(f"{name}: {word} ...")
    return found


def files() -> list[str]:
    """Return the Python files of the library and the pipelines that are checked."""
    paths = sorted(path for folder in ("c2t", "pipelines") for path in (ROOT / folder).rglob("*.py"))
    return [path.relative_to(ROOT).as_posix() for path in paths]


@pytest.mark.parametrize("name", files())
def test_docstrings_say_what_a_thing_does(name: str):
    assert riddles((ROOT / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('def draw():\n    """The token."""', ["draw: The ..."]),
        ('def draw():\n    """Draw the token."""', []),
        ('def _draw():\n    """The token."""', []),
        ('def _draw():\n    """Whether it is drawn."""', ["_draw: Whether ..."]),
        ('class Tree:\n    """A tree."""\n    @property\n    def size(self):\n        """The number of slots."""', []),
        ('class Tree:\n    def size(self):\n        """What it holds."""', ["size: What ..."]),
        ('"""Where files are."""', ["the module: Where ..."]),
    ],
)
def test_the_check_itself(source: str, found: list[str]):
    assert riddles(source) == found
