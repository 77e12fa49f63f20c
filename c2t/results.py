"""Result lines: what a command found, as one line of JSON from which tables and plots are made."""

import json
import time
from pathlib import Path
from typing import Any

from c2t.errors import InputError
from c2t.provenance import environment


def result_line(command: str, figures: dict[str, Any], configuration: dict[str, Any]) -> str:
    """Figures, configuration, versions, commit, hardware, and when."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = {"command": command, "time": when, "figures": figures, "configuration": configuration, **environment()}
    return json.dumps(line, ensure_ascii=False, default=str)


def append_line(path: str | Path, line: str) -> None:
    """Add a result line to a file, which is made if it is not there."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise InputError(f"cannot write results to {path}: {error.strerror}") from error
