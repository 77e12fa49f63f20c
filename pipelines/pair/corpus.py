"""A small text corpus of three domains, cut from Python sources.

`code` is functions, `prose` the paragraphs of docstrings and comments, `doctest` the interactive examples. Sources
differ between machines, so all stages read one frozen file; commit 65ff353 has the code that made it and its prompts.
"""

import json
import lzma
from dataclasses import dataclass
from pathlib import Path

QUOTA = {"code": 1_350_000, "prose": 850_000, "doctest": 850_000}  # characters of each domain
SPLITS = (("bench_known", 12), ("harvest_known", 16), ("bench_heldout", 10), ("harvest_heldout", 10), ("train", 52))


@dataclass(frozen=True)
class Document:
    """Piece of one source file, of one domain."""

    domain: str
    source: str  # package/path
    split: str  # bench_known, harvest_known and train are trained on; *_heldout are not
    text: str

    @property
    def trained(self) -> bool:
        """True if the models are trained on it."""
        return not self.split.endswith("heldout")


def load(path: Path) -> list[Document]:
    """Return the documents of a corpus file."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [Document(**json.loads(line)) for line in file]
