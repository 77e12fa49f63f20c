"""Whole texts of a pair with real weights on a device: do graphs write the ordinary loop's text, and how fast?"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from c2t.classifier import TreeClassifier
from c2t.decoder import SpeculativeDecoder
from c2t.models.pairs import Pair, load_pair
from c2t.policies import C2T, Eagle2, JointThreshold, Plain
from c2t.prompts import default_prompts, read_prompts
from c2t.protocols import Policy

GRAPH_TOKENS = 512
Texts = list[list[int]]


class Way(NamedTuple):
    """One way to decode: write(ids) returns the new tokens, and tokens a round (None: not counted)."""

    name: str
    write: Callable[[list[int]], tuple[list[int], float | None]]


class Speed(NamedTuple):
    """tokens a second, tokens a round, and the share of texts that are plain decoding's."""

    name: str
    tokens: float
    tau: float | None
    same: float

    def __str__(self) -> str:
        tau = "    " if self.tau is None else f"{self.tau:4.2f}"
        return f"{'text':10} {self.name:58} {self.tokens:9.1f} tokens/s  tau {tau}  {self.same:4.0%} as plain"


def policies(pair: Pair, name: str) -> dict[str, Policy]:
    """Return what is compared, by name."""
    classifier = TreeClassifier.from_pretrained(name, device=pair.target.device)
    return {
        "plain": Plain(),
        "EAGLE-2, N=60": Eagle2(N=60),
        "EAGLE-2, N=16": Eagle2(N=16, levels=4),
        "threshold 0.1": JointThreshold(0.1),
        "threshold 0.03": JointThreshold(0.03),
        "C2T": C2T(classifier),
    }


def ways(pair: Pair, name: str, new: int, options: dict[str, Any]) -> Iterator[Way]:
    """Yield every policy by the ordinary loop and by graphs. options: of `SpeculativeDecoder.generate`."""
    for policy_name, policy in policies(pair, name).items():
        for how, graphs in (("loop", 0), ("graphs", GRAPH_TOKENS)):
            decoder = SpeculativeDecoder(pair, policy, graph_tokens=graphs)
            yield Way(f"{policy_name}: {how}", partial(ours, decoder, new, options))


def ours(decoder: SpeculativeDecoder, new: int, options: dict[str, Any], ids: list[int]) -> tuple[list[int], float]:
    """Continue a prompt by c2t."""
    found = decoder.generate([ids], max_new_tokens=new, **options)
    return found.sequences[0], found.total.tau


def stock(pair: Pair, new: int) -> Iterator[Way]:
    """Yield transformers' own loops: as it comes, and with a static cache, for which it compiles the forward."""
    for name, options in {"as it comes": {}, "static cache": {"cache_implementation": "static"}}.items():
        yield Way(f"transformers, {name}", partial(theirs, pair, new, options))


def theirs(pair: Pair, new: int, options: dict[str, Any], ids: list[int]) -> tuple[list[int], None]:
    """Continue a prompt by transformers."""
    inputs = torch.tensor([ids], device=pair.target.device)
    found = pair.target.model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=new, do_sample=False, pad_token_id=0, **options
    )
    return found[0, len(ids) :].tolist(), None


def compare(every: Sequence[Way], prompts: Sequence[list[int]], device: torch.device) -> Iterator[Speed]:
    """Yield what each way reaches; all texts are written twice, and the second time counts. The first way is plain
    decoding."""
    expected: Texts | None = None
    for way in every:
        for ids in prompts:
            way.write(ids)
        synchronise(device)
        begin = time.perf_counter()
        found = [way.write(ids) for ids in prompts]
        synchronise(device)
        seconds = time.perf_counter() - begin
        texts = [tokens for tokens, _ in found]
        expected = expected or texts
        same = sum(a == b for a, b in zip(texts, expected, strict=True)) / len(texts)
        taus = [tau for _, tau in found if tau is not None]
        yield Speed(way.name, sum(map(len, texts)) / seconds, sum(taus) / len(taus) if taus else None, same)


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def text_lines(name: str, device: torch.device, dtype: torch.dtype, count: int, new: int) -> Iterator[Speed]:
    """Yield the texts of `count` of the pair's own prompts, `new` tokens each: greedy by all, then sampled by c2t."""
    pair = load_pair(name, device=device, dtype=dtype)
    decoder = SpeculativeDecoder(pair, Plain())
    asked = [prompt.turns[0] for file in default_prompts(name, "bench") for prompt in read_prompts(file)]
    prompts = decoder.encode(asked[:: -(-len(asked) // count)])
    yield from compare([*ways(pair, name, new, {}), *stock(pair, new)], prompts, device)
    sampled = {"temperature": 0.8, "seed": 1}
    for speed in compare([*ways(pair, name, new, sampled)], prompts, device):
        yield speed._replace(name=f"T = 0.8, {speed.name}")
