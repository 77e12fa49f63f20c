"""Whole texts of a pair with real weights on a device: equality with plain decoding and, of graphs, with the ordinary
loop; and their speed."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch

from c2t.classifier import TreeClassifier
from c2t.costs.statistics import total
from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import Pair, load_pair
from c2t.policies import C2T, Eagle2, JointThreshold, Plain
from c2t.protocols import Policy
from c2t.replay.prompts import default_prompts, read_prompts, spread
from c2t.sampling import Sampling
from pipelines.bench.contenders import Task, Transformers, Written

GRAPH_TOKENS = 512


class Sizes(NamedTuple):
    """How many of the pair's prompts are continued by how many tokens, computed in this dtype. loops: by the ordinary
    loop too, and sampled ones besides; it takes ten times as long."""

    dtype: torch.dtype
    prompts: int
    tokens: int
    loops: bool


TEXTS = Sizes(torch.float32, 3, 48, True), Sizes(torch.bfloat16, 40, 128, False)
TINY_TEXTS = (Sizes(torch.float32, 2, 12, True),)


class Way(NamedTuple):
    """One way to decode. write(ids) continues a prompt."""

    name: str
    write: Callable[[list[int]], Written]


class Speed(NamedTuple):
    """tokens: a second, the prompts' forwards included. after: the same without the first tokens. first: milliseconds
    until the first token. round: milliseconds of one. tau: accepted tokens a round. same: share of texts that are
    plain decoding's."""

    name: str
    tokens: float
    after: float
    first: float
    round: float | None
    tau: float | None
    same: float

    @classmethod
    def of(cls, name: str, texts: Sequence[Written], expected: Sequence[Written]) -> "Speed":
        """Sum up some texts; expected: the same ones by plain decoding."""
        new, seconds, first = (
            sum(column) for column in zip(*((t.new, t.seconds, t.first) for t in texts), strict=True)
        )
        counts = total(text.statistics for text in texts if text.statistics)
        return cls(
            name,
            tokens=new / seconds,
            after=(new - len(texts)) / (seconds - first),
            first=1000 * first / len(texts),
            round=1000 * (seconds - first) / counts.rounds if counts.rounds else None,
            tau=counts.tau if counts.rounds else None,
            same=sum(a.tokens == b.tokens for a, b in zip(texts, expected, strict=True)) / len(texts),
        )

    def __str__(self) -> str:
        a_round = "" if self.round is None else f"  {self.round:6.3f} ms a round, tau {self.tau:4.2f}"
        speed = f"{self.tokens:7.1f} tokens/s, {self.after:7.1f} after {self.first:5.1f} ms"
        return f"{'text':10} {self.name:40} {speed}  {self.same:4.0%} as plain{a_round}"


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


def ways(pair: Pair, name: str, sizes: Sizes, options: dict[str, Any]) -> Iterator[Way]:
    """Yield every policy by the ordinary loop, if `sizes.loops`, and by graphs. options: of
    `SpeculativeDecoder.generate`."""
    for policy_name, policy in policies(pair, name).items():
        for how, graphs in (("loop", 0), ("graphs", GRAPH_TOKENS)):
            if graphs or sizes.loops:
                decoder = SpeculativeDecoder(pair, policy, graph_tokens=graphs)
                yield Way(f"{policy_name}: {how}", partial(ours, decoder, sizes.tokens, options))


def ours(decoder: SpeculativeDecoder, new: int, options: dict[str, Any], ids: list[int]) -> Written:
    """Continue a prompt by c2t."""
    times: list[float] = []
    begin = time.perf_counter()
    output = decoder.generate([ids], max_new_tokens=new, watch=lambda _: times.append(time.perf_counter()), **options)
    return Written(output.sequences, times[0] - begin, time.perf_counter() - begin, output.total)


def stock(pair: Pair, new: int) -> Iterator[Way]:
    """Yield transformers' own loops: as it comes, and with a static cache, for which it compiles the forward."""
    task = Task(new, Sampling(), pair.target.eos)
    for setting, options in {"as it comes": {}, "static cache": {"cache_implementation": "static"}}.items():
        loop = Transformers("transformers", setting, pair.target.model, options)
        yield Way(f"{loop.name}, {setting}", lambda ids, loop=loop: loop.write([ids], [0], task))


def compare(every: Iterable[Way], prompts: Sequence[list[int]]) -> Iterator[Speed]:
    """Yield the speed of each way; all texts are generated twice, and the second time counts. The first way is plain
    decoding."""
    expected: list[Written] = []
    for way in every:
        for ids in prompts:
            way.write(ids)
        texts = [way.write(ids) for ids in prompts]
        expected = expected or texts
        yield Speed.of(way.name, texts, expected)


def text_lines(name: str, device: torch.device, sizes: Sizes) -> Iterator[Speed]:
    """Yield the speed of each way on the pair's own prompts."""
    pair = load_pair(name, device=device, dtype=sizes.dtype)
    decoder = SpeculativeDecoder(pair, Plain())
    bench = [prompt for file in default_prompts(name, "bench") for prompt in read_prompts(file)]
    prompts = decoder.encode([prompt.turns[0] for prompt in spread(bench, sizes.prompts)])
    yield from compare(chain(ways(pair, name, sizes, {}), stock(pair, sizes.tokens)), prompts)
    if not sizes.loops:
        return
    sampled = {"temperature": 0.8, "seed": 1}
    for speed in compare(ways(pair, name, sizes, sampled), prompts):
        yield speed._replace(name=f"T = 0.8, {speed.name}")
