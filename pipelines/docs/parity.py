"""Tables of docs/results/parity.md: which logits of a tree are plain decoding's, and which modules differ."""

from pipelines.docs.cells import grouped, table
from pipelines.docs.result_lines import Line, lines, source


def _computed(line: Line) -> str:
    run = line["configuration"]
    return f"c2t, {run['dtype']}" if run["kernels"] else f"transformers, {run['dtype']}, {run['attention']}"


def _note() -> str:
    shown = lines("parity.jsonl")
    return source(shown, f"SmolLM2-135M, a tree after a prompt of {shown[0]['configuration']['prefix']} tokens")


def nodes() -> str:
    """Return how many logits differ at each number of nodes."""
    rows = [
        (
            _computed(line),
            str(row["rows"]),
            str(row["differing"]),
            f"{row['ulp']:.2g}",
            str(len(row["flips"])),
            f"`{row['first']}`" if row["first"] else "",
        )
        for line in lines("parity.jsonl")
        for row in line["figures"]["rows"]
        if row["rows"] in (1, 8, 60)
    ]
    columns = ("computed by", "nodes", "with other logits", "ulp", "other argmax", "first module that differs")
    return table(columns, grouped(rows), _note())


def modules() -> str:
    """Return the modules that differ by themselves, at the largest number of nodes."""
    rows = [
        (
            _computed(line),
            f"`{module['name']}`",
            f"{len(module['differing'])} of {module['count']}",
            f"{module['ulp']:.2g}",
            str(module["rows"]),
        )
        for line in lines("parity.jsonl")
        for module in line["figures"]["rows"][-1]["activations"]
        if line["configuration"]["attention"] == "sdpa"
    ]
    most = lines("parity.jsonl")[0]["figures"]["rows"][-1]["rows"]
    return table(("computed by", "module", "layers", "ulp", f"of {most} nodes"), grouped(rows), _note())
