"""The target's own texts: the heads learn from the kind of text that they will draft."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LlamaForCausalLM


def sample(logits: Float[Tensor, "B V"], temperature: float, generator: torch.Generator) -> Int[Tensor, " B"]:
    """Sample the next token of each row."""
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits.float() / temperature).softmax(-1), 1, generator=generator)[:, 0]


@torch.inference_mode()
def write(
    target: LlamaForCausalLM, prompts: Int[Tensor, "B n"], length: int, temperature: float, generator: torch.Generator
) -> Int[Tensor, "B length"]:
    """Continue prompts of one length to `length` tokens. A separator does not end a text: the next document follows."""
    text, cache, new = prompts, None, prompts
    while text.shape[1] < length:
        out = target.model(input_ids=new, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        new = sample(target.lm_head(out.last_hidden_state[:, -1]), temperature, generator)[:, None]
        text = torch.cat([text, new], 1)
    return text


def beginnings(
    documents: list[list[int]], rows: int, tokens: int, separator: int, generator: torch.Generator
) -> Int[Tensor, "rows tokens"]:
    """Return random places of random documents, each after the separator that begins every text."""
    starts = []
    fitting = [ids for ids in documents if len(ids) > tokens]
    for index in torch.randint(len(fitting), (rows,), generator=generator).tolist():
        ids = fitting[index]
        # Half of the texts begin where a document begins, as prompts do.
        start = int(torch.randint(1, len(ids) - tokens + 2, (1,), generator=generator))
        if torch.rand((), generator=generator) < 0.5:
            start = 1
        starts.append([separator, *ids[start : start + tokens - 1]])
    return torch.tensor(starts)


def write_texts(
    target: LlamaForCausalLM,
    documents: list[list[int]],
    separator: int,
    rows: int,
    length: int = 256,
    temperatures: tuple[float, ...] = (0.4, 0.8, 1.0),
    batch: int = 128,
    seed: int = 0,
) -> Int[Tensor, "rows length"]:
    """Generate texts of the target, with the temperatures in turn."""
    generator = torch.Generator().manual_seed(seed)
    texts = []
    for index in range(-(-rows // batch)):
        tokens = int(torch.randint(16, 80, (1,), generator=generator))
        prompts = beginnings(documents, batch, tokens, separator, generator)
        texts.append(write(target, prompts, length, temperatures[index % len(temperatures)], generator))
    return torch.cat(texts)[:rows]
