"""Result lines of measurements, one for each row of their tables."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from c2t.models.loading.load import Pair
from c2t.storage.results import append_line, check_place, result_line


def _before_the_work(file: Path | None) -> Path | None:
    if file:
        check_place(file)
    return file


Json = Annotated[
    Path | None, typer.Option(help="Append a line of JSON for each row to this file.", callback=_before_the_work)
]


def computed(pair: Pair) -> dict[str, Any]:
    """Return what a result line says of how a pair was computed."""
    return {"threads": torch.get_num_threads(), "dtype": pair.arithmetic}


def append(file: Path | None, command: str, rows: Iterable[dict[str, Any]], configuration: dict[str, Any]) -> None:
    """Append a result line for each row, if a file was given."""
    for row in rows if file else ():
        append_line(file, result_line(command, row, configuration))
