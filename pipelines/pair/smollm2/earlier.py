"""The start of a work folder from a trained pair: its heads resume from their stored weights, and new texts answer
other questions."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from c2t.storage.checked import OPEN, from_json, read_file

FILE = "earlier.json"


@dataclass(frozen=True)
class Earlier:
    """shards: number of the first one that is not written yet. answers, tokens: of the texts in those before, by
    source. rounds, logged: the finished ones of each head, and its last logged step, by its folder."""

    __pydantic_config__ = OPEN

    shards: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, list[dict]] = field(default_factory=dict)
    logged: dict[str, str] = field(default_factory=dict)

    @property
    def written(self) -> int:
        """Number of tokens of the target's texts that are gone."""
        return sum(self.tokens.values())


def begin(work: Path, out: Path) -> Earlier:
    """Return what the pair in `out` had learned when this work folder began. It is stored there, since a round
    changes the pair. A folder that has texts but no such file began with no pair."""
    path, provenance = work / FILE, out / "provenance.json"
    if path.exists():
        return from_json(Earlier, read_file(path), path)
    trained = provenance.exists() and not (work / "texts").exists()
    before = from_json(Earlier, read_file(provenance), provenance) if trained else Earlier()
    work.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(before), indent=1) + "\n")
    return before
