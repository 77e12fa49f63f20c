"""Tables of the GPU report: whole texts of a pair, and the parts of a draft phase of 7B shapes."""

from typing import Any

from pipelines.docs.cells import LENGTHS, lengths, number, table
from pipelines.docs.result_lines import Line, lines, source


def _last(command: str, **settings: Any) -> Line:
    """Return the last line of a command with these settings."""
    *_, last = (
        line
        for line in lines("gpu.jsonl")
        if line["command"] == command and settings.items() <= line["configuration"].items()
    )
    return last


def texts() -> str:
    """Return the table of whole texts with smollm2 in bfloat16."""
    line = _last("gpu_texts", pair="smollm2", dtype="bfloat16")
    rows = []
    for name, (_, after, _, a_round, tau, same) in line["figures"].items():
        counted = ("", "", "") if a_round is None else (f"{a_round:.2f}", *lengths(tau))
        rows.append((name, f"{after:.0f}", *counted, f"{same:.0%}"))
    columns = ("way to decode", "tokens/s after the first", "ms a round", *LENGTHS, "text of the first row")
    run = line["configuration"]
    how = f"smollm2, {run['prompts']} prompts, {run['tokens']} new tokens, T = 0"
    return table(columns, rows, source(line, how, run["dtype"]))


def phases() -> str:
    """Return the table of a level's selection and of whole draft phases."""
    line = _last("gpu_report")
    rows = []
    for name, (median, low, high, floor) in line["figures"].items():
        stage, what = name.split(": ", 1)
        if stage in ("select", "draft"):
            over = floor and median / floor
            rows.append((f"{stage}: {what}", f"{median:.4f}", f"{low:.4f}-{high:.4f}", number(over, ".2f")))
    return table(
        ("what", "ms", "quartiles", "/ floor"),
        rows,
        source(line, f"shapes of {line['configuration']['shapes']}, bfloat16"),
    )
