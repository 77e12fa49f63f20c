"""Tables of docs/heads.md: the pairs by name, from c2t.storage.published, and other heads on the Hub. Every layout in
them is one that tests/eagle3_reference.py or the tests of EAGLE-1 checkpoints read."""

from collections.abc import Sequence
from typing import NamedTuple

from c2t.storage.published import PUBLISHED
from pipelines.docs.cells import grouped, table


class Published(NamedTuple):
    """A head on the Hub, in its publisher's layout."""

    target: str
    head: str
    layout: str


OTHERS = [
    Published("Llama-3.1-8B-Instruct", "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge", "flat"),
    Published("Llama-3.1-8B-Instruct", "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", "speculators"),
    Published("Llama-3.1-8B-Instruct", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "EAGLE-1"),
    Published("Llama-3.3-70B-Instruct", "lmsys/SGLang-EAGLE3-Llama-3.3-70B-Instruct-SpecForge", "flat"),
    Published("Llama-3.3-70B-Instruct", "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3", "speculators"),
    Published("Qwen3-8B", "Tengyunw/qwen3_8b_eagle3", "flat"),
    Published("Qwen3-8B", "Zjcxy-SmartAI/Eagle3-Qwen3-8B-zh", "flat"),
    Published("Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3", "speculators"),
    Published("Qwen3-14B", "RedHatAI/Qwen3-14B-speculator.eagle3", "speculators"),
    Published("Qwen3-32B", "Zjcxy-SmartAI/Eagle3-Qwen3-32B-zh", "flat"),
    Published("Qwen3-32B", "RedHatAI/Qwen3-32B-speculator.eagle3", "speculators"),
    Published("Qwen3-30B-A3B", "Tengyunw/qwen3_30b_moe_eagle3", "flat"),
    Published("Qwen3-30B-A3B-Instruct-2507", "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex", "flat"),
    Published("Qwen3-30B-A3B-Instruct-2507", "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3", "speculators"),
    Published("gpt-oss-20b", "zhuyksir/EAGLE3-gpt-oss-20b-bf16", "flat"),
    Published("gpt-oss-120b", "lmsys/EAGLE3-gpt-oss-120b-bf16", "flat"),
    Published("gpt-oss-120b", "nvidia/gpt-oss-120b-Eagle3, also -short-context, -throughput, -v3", "ModelOpt"),
    Published("Qwen2-72B-Instruct", "yuhuili/EAGLE-Qwen2-72B-Instruct", "EAGLE-1"),
    Published("Qwen2.5-14B-Instruct", "Zjcxy-SmartAI/Eagle-Qwen2.5-14B-Instruct", "EAGLE-1"),
]


def pairs(generation: str) -> str:
    """Return the table of the pairs by name whose heads are "EAGLE-1" or "EAGLE-3"."""
    rows = [
        (f"`{name}`", pair.target, pair.draft, " + ".join(map(gigabytes, pair.sizes)))
        for name, pair in PUBLISHED.items()
        if (layout(pair.draft) == "EAGLE-1") == (generation == "EAGLE-1")
    ]
    return table(("name", "target", "head", "GB"), rows, figures="---|")


def others(families: Sequence[str]) -> str:
    """Return the table of heads of some families of targets that `--draft` takes by their ids."""
    rows = grouped(head for head in OTHERS if head.target.startswith(tuple(families)))
    return table(("target", "head", "format"), rows, figures="---|")


def layout(head: str) -> str:
    """Return the layout of a pair's head."""
    if head.startswith("yuhuili/"):
        return "flat, .bin" if "EAGLE3" in head else "EAGLE-1"
    return "speculators" if head.startswith("RedHatAI/") else "flat"


def gigabytes(size: float | None) -> str:
    """Return a size in GB as the table shows it."""
    return "?" if size is None else f"{size:g}"
