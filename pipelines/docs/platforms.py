"""Tables of docs/platforms.md: which machines and which families of targets are fast, exact, or run."""

from c2t.models.target import stock
from c2t.models.target.target import FAMILIES
from pipelines.docs.cells import table

NAMES = {
    "llama": "Llama 2 and 3, Vicuna, SmolLM, TinyLlama, ...",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3-MoE",
    "gpt_oss": "gpt-oss",
    "gemma3_text": "Gemma 3, text only",
    "phi3": "Phi-3",
    "olmo2": "OLMo 2",
    "gpt2": "GPT-2",
}
FAST, RUNS = "fast, same bits", "runs"
MACHINES = [
    ("Linux, x86-64, GCC", FAST, RUNS, "yes"),
    ("Linux, x86-64, no GCC", RUNS, RUNS, "yes"),
    ("Linux, ARM64", "runs; with GCC by the kernels", RUNS, "no"),
    ("macOS, Windows", RUNS, RUNS, "no"),
    ("NVIDIA GPU", "runs; CUDA graphs are experimental", RUNS, "smollm2 and tiny, one H100"),
]


def machines() -> str:
    """Return the table of machines."""
    return table(("machine", "Llama family", "ten other families", "tested"), MACHINES, figures="---|")


def families() -> str:
    """Return the table of families of targets, by the models that c2t.models.target.target and c2t.models.target.stock
    list."""
    rows = [(NAMES[kind], f"`{kind}`", FAST if kind in stock.FAMILIES else RUNS) for kind in FAMILIES]
    assert len(rows) == len(NAMES) == 1 + 10
    return table(("family", "`model_type`", "on a CPU with GCC"), rows, figures="---|")
