"""The pairs of the papers' experiments: Hub ids by name. They stand here, below the classifier and the models, because
both look up names."""

from typing import NamedTuple


class PublishedPair(NamedTuple):
    """Hub ids of target and draft; template: name of the target's chat template."""

    target: str
    draft: str
    template: str


def _eagle(target: str, draft: str, template: str) -> PublishedPair:
    return PublishedPair(target, f"yuhuili/EAGLE-{draft}", template)


PUBLISHED = {
    "llama2-7b": _eagle("meta-llama/Llama-2-7b-chat-hf", "llama2-chat-7B", "llama2"),
    "llama2-13b": _eagle("meta-llama/Llama-2-13b-chat-hf", "llama2-chat-13B", "llama2"),
    "llama2-70b": _eagle("meta-llama/Llama-2-70b-chat-hf", "llama2-chat-70B", "llama2"),
    "vicuna-7b": _eagle("lmsys/vicuna-7b-v1.3", "Vicuna-7B-v1.3", "vicuna"),
    "vicuna-13b": _eagle("lmsys/vicuna-13b-v1.3", "Vicuna-13B-v1.3", "vicuna"),
    "vicuna-33b": _eagle("lmsys/vicuna-33b-v1.3", "Vicuna-33B-v1.3", "vicuna"),
    "llama3-8b": _eagle("meta-llama/Meta-Llama-3-8B-Instruct", "LLaMA3-Instruct-8B", "llama3"),
    "llama3-70b": _eagle("meta-llama/Meta-Llama-3-70B-Instruct", "LLaMA3-Instruct-70B", "llama3"),
}
