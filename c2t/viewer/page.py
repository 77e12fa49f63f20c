"""The page as one file of HTML that needs no network and runs no script but its own."""

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

FOLDER = Path(__file__).parent
SCRIPTS = ("d3-hierarchy-3.1.2.min.js", "rounds.js", "page.js")
# In JSON within HTML these could end or open an element; \u escapes mean the same to JSON and nothing to HTML.
ESCAPES = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&"})


def page(document: Mapping[str, Any], live: str = "") -> str:
    """Return the HTML of a document. live: address of further rounds, on the server that the page comes from."""
    style = _read("page.css")
    scripts = [_read(name) for name in SCRIPTS]
    rules = {
        "default-src": ["'none'"],
        "style-src": [_hash(style)],
        "script-src": [_hash(script) for script in scripts],
        "connect-src": ["'self'" if live else "'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    return Template(_read("page.html")).substitute(
        rules="; ".join(" ".join([name, *values]) for name, values in rules.items()),
        style=style,
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        document=in_html(document),
        live=live,
    )


def in_html(document: Mapping[str, Any]) -> str:
    """Return JSON in ASCII that cannot leave the script element it stands in."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).translate(ESCAPES)


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
