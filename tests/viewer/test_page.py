"""The page is one file that needs no network, and no text in it becomes markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from c2t.policies import Eagle2
from c2t.viewer.document import policy_document
from c2t.viewer.page import FOLDER, SCRIPTS, in_html, page
from tests.viewer.documents import document, embedded

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "]]> &lt; &amp; $document ${style} {{x}}",
    "line\u2028end\u2029",
    "".join(map(chr, range(32))) + "\x7f\x9f",
    "lone \ud800 and \udfff, \ufffd \ufeff",
    "right\u202eto left, \U0001f600, \u0e4e\u0301",
]


def with_text(text: str) -> dict:
    """Return a document without rounds in which every text is `text`."""
    shown = policy_document(Eagle2()) | {"name": text, "first": {"tokens": [0], "pieces": [text], "shown": 1}}
    return {"prompt": text, "pair": text, "temperature": 0.0, "texts": {"0": text}, "policies": [shown]}


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of the scripts."""

    def __init__(self, html: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text: str) -> None:
    html = page(with_text(text))
    assert document(html) == with_text(text)
    assert embedded(html).isascii()
    assert not set("<>&") & set(embedded(html))
    assert Elements(html).found == Elements(page(with_text(""))).found, "the same elements, whatever the text"
    html.encode("utf-8")


def test_nothing_is_loaded_and_only_its_own_scripts_run() -> None:
    html = page(with_text(""))
    elements = Elements(html).found
    assert not [name for _, attributes in elements for name in attributes if name in ("src", "href", "style")]
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    [rules] = [a["content"] for _, a in elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert rules.startswith("default-src 'none'; ")
    assert "connect-src 'none'" in rules
    assert "unsafe" not in rules
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == len(SCRIPTS), "no script holds what would end it"
    for part in [*scripts, *re.findall(r"<style>(.*?)</style>", html, re.DOTALL)]:
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in rules
    assert "connect-src 'self'" in page(with_text(""), live="/rounds")


def test_own_scripts_write_no_html() -> None:
    for name in SCRIPTS[1:]:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", (FOLDER / name).read_text())


def test_d3_hierarchy_comes_with_its_licence() -> None:
    [name] = [name for name in SCRIPTS if name.startswith("d3")]
    assert "https://d3js.org/d3-hierarchy/ v3.1.2" in (FOLDER / name).read_text()
    assert "Mike Bostock" in (FOLDER / name.replace(".min.js", ".LICENSE")).read_text()


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        in_html({"x": float("nan")})
    assert json.loads(in_html({"x": "<"})) == {"x": "<"}


READ_ON = [("ink", "paper"), ("quiet", "paper"), ("quiet", "panel"), ("faint", "paper"), ("ink", "accept-soft")]
READ_ON += [("accept", "paper"), ("high", "low")]  # variables of colours: words, and the ground that they stand on


def luminance(colour: list[int]) -> float:
    """Return the relative luminance of WCAG 2, of red, green and blue up to 255."""
    parts = [part / 255 for part in colour]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def ratio(one: list[int], other: list[int]) -> float:
    """Return the contrast of WCAG 2 between two colours."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_every_theme_has_readable_colours() -> None:
    style = re.sub(r"/\*.*?\*/", "", (FOLDER / "page.css").read_text(encoding="utf-8"), flags=re.DOTALL)
    themes = re.findall(r":root[^{]*\{([^}]*)\}", style)
    assert len(themes) == 3, "light, dark as the system says, dark as chosen"
    for theme in themes:
        colours = {name: [*bytes.fromhex(code)] for name, code in re.findall(r"--([\w-]+): #(\w{6})", theme)}
        for words, ground in READ_ON:
            assert ratio(colours[words], colours[ground]) >= 4.5, (words, ground)


@pytest.mark.parametrize("kind", ["kept", "faint", "accepted", "accepted shown", "root", "bonus", "missed"])
def test_the_number_of_hidden_children_has_a_colour_for_paper(kind: str) -> None:
    """It stands inside of its chip's element and beside the chip: the rules for words on a chip are not for it."""
    style = re.sub(r"/\*.*?\*/", "", (FOLDER / "page.css").read_text(encoding="utf-8"), flags=re.DOTALL)
    path = [("g", {"node", *kind.split()}), ("text", {"more"})]
    fills = []
    for rule, (selectors, said) in enumerate(re.findall(r"([^{}]+)\{([^{}]*)\}", style)):
        fill = re.search(r"\bfill: ([^;]+);", said)
        for selector in selectors.split(",") if fill else []:
            parts = [re.fullmatch(r"(\w*)((?:\.[\w-]+)*)", part) for part in selector.split()]
            if not all(parts) or len(parts) > len(path):
                continue
            on_path = zip(parts, path[-len(parts) :], strict=True)
            if all(
                part[1] in ("", tag) and {*part[2].split(".")} - {""} <= classes for part, (tag, classes) in on_path
            ):
                weight = sum(part[2].count(".") for part in parts), sum(bool(part[1]) for part in parts)
                fills.append((weight, rule, fill[1]))
    assert max(fills)[-1] == "var(--faint)"
