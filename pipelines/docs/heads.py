"""Tables of docs/heads.md: the pairs by name, from c2t.storage.published, and other heads on the Hub. Every layout in
them is one that tests/eagle3_reference.py, tests/block_reference.py or the tests of EAGLE-1 checkpoints read."""

import re
from typing import NamedTuple

from c2t.storage.published import PUBLISHED
from pipelines.docs.cells import grouped, table


class Published(NamedTuple):
    """Heads on the Hub, in their publisher's layout. Braces stand for one of the names in them, as in a shell."""

    target: str
    head: str
    layout: str


OTHERS = [
    Published("Llama-3.1-8B, -3.3-70B", "lmsys/SGLang-EAGLE3-Llama-{3.1-8B,3.3-70B}-Instruct-SpecForge", "EAGLE-3"),
    Published("Llama-3.1-8B, -3.3-70B", "RedHatAI/Llama-{3.1-8B,3.3-70B}-Instruct-speculator.eagle3", "EAGLE-3"),
    Published("Llama-3.1-8B", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "EAGLE-1"),
    Published("Llama-3.1-8B", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", "DFlash"),
    Published("Qwen2-72B", "yuhuili/EAGLE-Qwen2-72B-Instruct", "EAGLE-1"),
    Published("Qwen2.5-14B", "Zjcxy-SmartAI/Eagle-Qwen2.5-14B-Instruct", "EAGLE-1"),
    Published("Qwen3-4B, 8B, 14B", "deepseek-ai/{dspark,dflash}_qwen3_{4b,8b,14b}_block7", "DSpark, DFlash"),
    Published("Qwen3-4B, 8B, 14B", "deepseek-ai/eagle3_qwen3_{4b,8b,14b}_ttt7", "EAGLE-3"),
    Published("Qwen3-4B, 8B", "z-lab/Qwen3-{4B,8B}-DFlash-b16", "DFlash"),
    Published("Qwen3-4B", "RedHatAI/Qwen3-4B-speculator.{dspark,dflash2}", "DSpark, DFlash2"),
    Published("Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.{dflash,dflash2}", "DFlash, DFlash2"),
    Published("Qwen3-8B", "mgoin/Qwen3-8B-speculator.{dflash,dspark}", "DFlash, DSpark"),
    Published("Qwen3-8B", "Huang2020/Qwen3-8B-Domino-b16", "Domino"),
    Published("Qwen3-8B", "Tengyunw/qwen3_8b_eagle3", "EAGLE-3"),
    Published("Qwen3-8B, 32B", "Zjcxy-SmartAI/Eagle3-Qwen3-{8B,32B}-zh", "EAGLE-3"),
    Published("Qwen3-8B, 14B, 32B", "RedHatAI/Qwen3-{8B,14B,32B}-speculator.eagle3", "EAGLE-3"),
    Published("Qwen3-4B, 8B", "peerrh/treeflash-qwen3-{4b,8b}", "TreeFlash"),
    Published("Qwen3-8B, 30B-A3B", "JetSpec/jetspec-qwen3-{8b,30b-a3b}", "JetSpec"),
    Published("Qwen3-30B-A3B", "Tengyunw/qwen3_30b_moe_eagle3", "EAGLE-3"),
    Published("Qwen3-30B-A3B-2507", "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex", "EAGLE-3"),
    Published(
        "Qwen3-30B-A3B-2507", "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.{eagle3,dflash}", "EAGLE-3, DFlash"
    ),
    Published("Qwen3-Coder-30B-A3B", "z-lab/Qwen3-Coder-30B-A3B-DFlash", "DFlash"),
    Published("gpt-oss-20b", "zhuyksir/EAGLE3-gpt-oss-20b-bf16", "EAGLE-3"),
    Published("gpt-oss-20b", "JetSpec/jetspec-gpt-oss-20b", "JetSpec"),
    Published("gpt-oss-120b", "lmsys/EAGLE3-gpt-oss-120b-bf16", "EAGLE-3"),
    Published("gpt-oss-120b", "nvidia/gpt-oss-120b-Eagle3, -short-context, -throughput, -v3", "EAGLE-3"),
    Published("gpt-oss-20b, 120b", "z-lab/gpt-oss-{20b,120b}-DFlash", "DFlash"),
]


def pairs(eagle: int) -> str:
    """Return the table of the pairs by name whose heads are EAGLE-1, or EAGLE-3."""
    of_first = [name for name, pair in PUBLISHED.items() if pair.draft.startswith("yuhuili/EAGLE-")]
    rows = [(f"`{name}`", pair.draft) for name, pair in PUBLISHED.items() if (name in of_first) == (eagle == 1)]
    return table(("name", "head"), rows, figures="---|")


def others(targets: str) -> str:
    """Return the table of heads that `--draft` takes by their ids, for targets whose names match a pattern."""
    rows = grouped(head for head in OTHERS if re.match(targets, head.target))
    return table(("target", "head", "format"), rows, figures="---|")
