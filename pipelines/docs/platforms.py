"""Tables of docs/platforms.md: which machines and which families of targets are fast, exact, or run."""

from c2t.models.target import families
from c2t.models.target.target import FAMILIES
from pipelines.docs.cells import table

NAMES = {
    "Llama 2 and 3, Vicuna, SmolLM, TinyLlama, ...": ("llama",),
    "Mistral": ("mistral",),
    "Qwen2, Qwen2.5, Qwen3": ("qwen2", "qwen3"),
    "Gemma 3, text only": ("gemma3_text",),
    "Phi-3, Phi-4-mini": ("phi3",),
    "SmolLM3": ("smollm3",),
    "OLMo 2 and 3": ("olmo2", "olmo3"),
    "Mixtral": ("mixtral",),
    "Qwen3-MoE": ("qwen3_moe",),
    "gpt-oss": ("gpt_oss",),
    "GPT-2": ("gpt2",),
}
FAST, RUNS = "fast, same bits", "runs"
MACHINES = [
    ("Linux, x86-64, GCC or Clang", FAST, RUNS, "yes"),
    ("Linux, x86-64, no compiler", RUNS, RUNS, "yes"),
    ("Linux, ARM64", "runs; with GCC or Clang by the kernels", RUNS, "no"),
    ("macOS", "runs; with GCC or Clang by the kernels", RUNS, "no"),
    ("Windows", RUNS, RUNS, "no"),
    ("NVIDIA GPU", "runs; CUDA graphs are experimental", RUNS, "smollm2 and tiny, one H100"),
]


def machines() -> str:
    """Return the table of machines."""
    return table(("machine", "families with kernels", "other families", "tested"), MACHINES, figures="---|")


def targets() -> str:
    """Return the table of families of targets, by the models that c2t.models.target.target and
    c2t.models.target.families list."""
    rows = []
    for name, kinds in NAMES.items():
        (fast,) = {kind in families.FAMILIES for kind in kinds}
        rows.append((name, ", ".join(f"`{kind}`" for kind in kinds), FAST if fast else RUNS))
    assert {kind for kinds in NAMES.values() for kind in kinds} == set(FAMILIES)
    return table(("family", "`model_type`", "on a CPU with GCC or Clang"), rows, figures="---|")
