"""Pairs whose target and head are on the Hub, by name: those of the papers' experiments, and those of EAGLE-3 heads
that many use. They stand here, below the classifier and the models, because both look up names."""

from typing import NamedTuple


class PublishedPair(NamedTuple):
    """Hub ids of target and draft; template: name of the target's chat template.

    sizes: GB of target and draft, about, where they are known without asking the Hub: weights times bytes of a weight,
    for an EAGLE-3 head those of a layer of the target's shape with 32000 tokens, in 16 bits.
    """

    target: str
    draft: str
    template: str
    sizes: tuple[float | None, float | None] = (None, None)


def _eagle(target: str, draft: str, template: str, *sizes: float | None) -> PublishedPair:
    return PublishedPair(target, f"yuhuili/EAGLE-{draft}", template, sizes)


def _eagle3(target: str, draft: str, template: str, *sizes: float | None) -> PublishedPair:
    return PublishedPair(target, f"yuhuili/EAGLE3-{draft}", template, sizes)


def _qwen3(size: str, draft: str, *sizes: float | None) -> PublishedPair:
    return PublishedPair(f"Qwen/Qwen3-{size}", f"AngelSlim/Qwen3-{draft}_eagle3", "chat", sizes)


def _gpt_oss(size: str, *sizes: float | None) -> PublishedPair:
    return PublishedPair(f"openai/gpt-oss-{size}", f"RedHatAI/gpt-oss-{size}-speculator.eagle3", "chat", sizes)


PUBLISHED = {
    "llama2-7b": _eagle("meta-llama/Llama-2-7b-chat-hf", "llama2-chat-7B", "llama2", 13.5, 1.47),
    "llama2-13b": _eagle("meta-llama/Llama-2-13b-chat-hf", "llama2-chat-13B", "llama2", 26.0, None),
    "llama2-70b": _eagle("meta-llama/Llama-2-70b-chat-hf", "llama2-chat-70B", "llama2", 138.0, 5.01),
    "vicuna-7b": _eagle("lmsys/vicuna-7b-v1.3", "Vicuna-7B-v1.3", "vicuna", 13.5, None),
    "vicuna-13b": _eagle("lmsys/vicuna-13b-v1.3", "Vicuna-13B-v1.3", "vicuna", 26.0, None),
    "vicuna-33b": _eagle("lmsys/vicuna-33b-v1.3", "Vicuna-33B-v1.3", "vicuna", 65.1, None),
    "llama3-8b": _eagle("meta-llama/Meta-Llama-3-8B-Instruct", "LLaMA3-Instruct-8B", "llama3", 16.1, 1.55),
    "llama3-70b": _eagle("meta-llama/Meta-Llama-3-70B-Instruct", "LLaMA3-Instruct-70B", "llama3", 141.0, 4.08),
    "qwen2-7b": _eagle("Qwen/Qwen2-7B-Instruct", "Qwen2-7B-Instruct", "chat", 15.2, None),
    "mixtral-8x7b": _eagle("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-instruct-8x7B", "chat", 93.4, None),
    "llama3.1-8b": _eagle3("meta-llama/Llama-3.1-8B-Instruct", "LLaMA3.1-Instruct-8B", "llama3", 16.1, 0.85),
    "llama3.3-70b": _eagle3("meta-llama/Llama-3.3-70B-Instruct", "LLaMA3.3-Instruct-70B", "llama3", 141.0, 2.81),
    "r1-llama-8b": _eagle3(
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "DeepSeek-R1-Distill-LLaMA-8B", "chat", 16.1, 0.85
    ),
    "vicuna-13b-eagle3": _eagle3("lmsys/vicuna-13b-v1.3", "Vicuna1.3-13B", "vicuna", 26.0, 1.28),
    "qwen3-1.7b": _qwen3("1.7B", "1.7B", 4.1, 0.27),
    "qwen3-4b": _qwen3("4B", "4B", 8.0, 0.44),
    "qwen3-8b": _qwen3("8B", "8B", 16.4, 0.8),
    "qwen3-14b": _qwen3("14B", "14B", 29.5, 1.22),
    "qwen3-32b": _qwen3("32B", "32B", 65.5, 1.56),
    "qwen3-30b-a3b": _qwen3("30B-A3B", "a3B", 61.1, None),
    "gpt-oss-20b": _gpt_oss("20b", None, None),
    "gpt-oss-120b": _gpt_oss("120b", None, None),
}

ORIGINS = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}  # Hub ids of embedded targets


def hub_target(pair: str) -> str | None:
    """Return the Hub id of a pair's target, None where it is not known."""
    return PUBLISHED[pair].target if pair in PUBLISHED else ORIGINS.get(pair)
