"""Docstrings say what a thing does: those of public functions start with a verb. Names and prose use standard words."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.prose import without_code

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "LOG.md"),
]
NEVER = {"What", "Whether", "Of", "Where", "Who"}  # riddles, in front of anything
NO_VERB = {"A", "An", "The"}  # nouns, which may stand in front of modules, classes and properties
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

# Words that readers of the field would have to learn here, and what they are called elsewhere.
PROSE = {
    r"rehears\w*": "speculate with the int4 target",
    r"hears|heard|hearing|louder|quieter|loudness": "Gumbel noise that draft and target share, scaled by",
    r"told|tells": "report, log, notify",
    r"pays?|paying|paid|worth": "is profitable, weight, expected speedup",
    r"promis(?:e|es|ed|ing)": "expected, predicted",
    r"kept": "cached, stored, retained",
    r"play(?:s|ed|ing)?": "run, decode",
    r"(?:target|draft|model|head|would have)(?: itself)? writ(?:es|ten)": "generates",
    r"laid end to end|of (?:its|their) own size": "packed, ragged",
    r"at once|in one call": "fused, together, immediately",
    r"(?:by|against) the clock": "measured",
    r"equal tau": "equal acceptance length",
    r"known sources|held[- ]out": "in-domain, out-of-domain",
    r"behind|beside|goes ahead|go ahead": "after, next to, before",
    r"anew|meanwhile|but for|goe?s? by|hangs? on|whoever": "again, at the same time, except, use, depend on, if you",
    r"surer": "more confident",
}
# Pictures are drawn; random tokens are sampled.
SAMPLES = {r"draws?|drawn|drew": "sample, sampled"}
PICTURES = ("viewer", "display", "figures", "plots", "drawing", "pipelines/docs", "docs/viewer", "output/", "card")
# A noun says what it is: `tokens`, `row`, `index`, `cached`.
NAMES = {"found", "one", "each", "known", "kept", "place", "places", "own", "told", "tell", "worth", "heard", "hearing"}
PARTS = re.compile(r"rehears|(?:^|_)(?:told|anew|behind|beside|pays|paying|loud|quiet(?:er)?)(?:_|$)")
C = (".c", ".h")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

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


def files(*endings: str) -> list[str]:
    """Return the files of the library and the pipelines that are checked: Python's, or those with other endings."""
    paths = sorted(path for folder in ("c2t", "pipelines") for path in (ROOT / folder).rglob("*"))
    return [path.relative_to(ROOT).as_posix() for path in paths if path.suffix in (endings or (".py",))]


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


def prose(path: Path) -> str:
    """Return what a file says to people: comments and strings with spaces; of a page all but its code."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return without_code(source)
    if path.suffix in C:
        return re.sub(r"`[^`]*`", "", "\n".join(COMMENT.findall(source)))
    said = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    comments = [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    said = [text for text in said if isinstance(text, str) and " " in text]
    return re.sub(r"`[^`]*`", "", "\n".join([*said, *comments]))


def dialect(text: str, pictures: bool = False) -> list[str]:
    """Return the private words of a text, each with what stands around it and the standard word."""
    words = PROSE if pictures else PROSE | SAMPLES
    return [
        f"{text[max(0, match.start() - 20) : match.end() + 20]!r}: say {standard}"
        for word, standard in words.items()
        for match in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    ]


def private_names(source: str, c: bool = False) -> list[str]:
    """Return the names that a module gives which say nothing of what they hold; of a file in C all its words."""
    names = set(re.findall(r"[a-zA-Z_]\w*", COMMENT.sub("", source))) if c else set()
    for node in () if c else ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, FUNCTIONS | ast.ClassDef):
            names.add(node.name)
    return sorted(name for name in names if name.strip("_") in NAMES or PARTS.search(name.lower()))


@pytest.mark.parametrize("name", files(".py", *C))
def test_names_and_prose_use_the_words_of_the_field(name: str):
    path = ROOT / name
    assert dialect(prose(path), any(part in name for part in PICTURES)) == []
    assert private_names(path.read_text(encoding="utf-8"), path.suffix in C) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_use_the_words_of_the_field(page: Path):
    assert dialect(prose(page), any(part in str(page) for part in PICTURES)) == []


def test_the_check_of_words_itself():
    assert dialect("The row is kept behind the others.") == [
        "'The row is kept behind the others.': say cached, stored, retained",
        "'The row is kept behind the others.': say after, next to, before",
    ]
    assert dialect("A tree is drawn.", pictures=True) == []
    assert private_names("found = 1\ndef f(own, row): x_told = row") == ["found", "own", "x_told"]
    assert private_names("/* found */ long place = own; // one", c=True) == ["own", "place"]
