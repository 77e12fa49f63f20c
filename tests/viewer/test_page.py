"""The page is one file that needs no network, and no text in it becomes markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from c2t.classifier import TreeClassifier
from c2t.policies import C2T, Eagle2
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


def random_round(rng: np.random.Generator, families: int, size: int) -> dict:
    """Return a round in which 59 candidates are kept, with numbers as long as those of real ones."""

    def column(values: np.ndarray, kind: str) -> str:
        return base64.b64encode(values.astype(kind).tobytes()).decode()

    count = families * size
    return {
        "position": 400,
        "tokens": rng.integers(0, 49152, 8).tolist(),
        "pieces": [" sentence"] * 8,
        "shown": 8,
        "passes": 10,
        "parents": column(np.arange(families), "<i4"),
        "sizes": column(np.full(families, size), "<i4"),
        "entropies": column(rng.random(families), "<f4"),
        **{name: column(rng.random(count), "<f4") for name in ("token", "log_prob", "target")},
        "kept": list(range(1, 60)),
        "accepted": list(range(1, 8)),
    }


def test_sixty_rounds_of_sixty_nodes_beside_a_second_policy_stay_under_two_megabytes() -> None:
    rng = np.random.default_rng(0)
    c2t, eagle2 = policy_document(C2T(TreeClassifier())), policy_document(Eagle2())
    c2t["rounds"] = [random_round(rng, 60, 15) for _ in range(60)]  # K = 15, every node expanded
    eagle2["rounds"] = [random_round(rng, 51, 10) for _ in range(60)]
    texts = {str(token): " sentence" for token in range(10_000, 20_000)}
    html = page(with_text("") | {"policies": [c2t, eagle2], "texts": texts})
    assert len(html.encode()) < 2 * 10**6


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        in_html({"x": float("nan")})
    assert json.loads(in_html({"x": "<"})) == {"x": "<"}
