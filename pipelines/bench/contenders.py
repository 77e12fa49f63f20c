"""Ways to generate with one target: c2t's own and its alternatives, each on the same clock."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import torch
from torch._inductor import config as inductor
from transformers import AutoModelForCausalLM, PreTrainedModel, StaticCache
from transformers.generation import BaseStreamer, CompileConfig

from c2t.costs.statistics import Statistics, Trace, total
from c2t.decoding import Step, cut
from c2t.models.loading.load import Pair
from c2t.policies.hierarchical import Hierarchical
from c2t.protocols import Policy
from c2t.sampling import Sampling
from c2t.verification.target_verifier import generate
from pipelines.bench.sizes import Size, size_of_target

PLAIN, TREE, HIERARCHICAL = "c2t, plain", "c2t, tree", "c2t, hierarchical"
ROUNDED = {"c2t in int8": torch.int8, "c2t in int4": torch.int4}  # c2t with another model: its target in fewer bits
LOOKUP, COMPILED = "transformers, prompt lookup", "transformers, torch.compile"
DTYPES = ("float32", "bfloat16")
LOOPS = tuple(f"transformers, {dtype}" for dtype in DTYPES)
LOOKED_UP = (3, 5, 10)  # tokens that prompt lookup copies in a round
CACHED = 256  # tokens of a compiled step's cache, unless a text is longer: the step reads all of them

Ids = Sequence[Sequence[int]]


class Written(NamedTuple):
    """Texts of one call. seconds: of the whole call; first: of them, until the first token was there; masks: of them,
    in the matchers of constraints. rounds: the target's forwards after the prompt's, where another program counts
    them."""

    tokens: list[list[int]]
    first: float
    seconds: float
    statistics: Statistics | None = None
    masks: float = 0.0
    rounds: int | None = None

    @property
    def new(self) -> int:
        """Number of new tokens."""
        return sum(map(len, self.tokens))


class Task(NamedTuple):
    """Length limit and sampling of the texts. They also end with an `eos` token."""

    max_new_tokens: int
    sampling: Sampling
    eos: frozenset[int]


class Contender(Protocol):
    """One way to generate. setting: what was chosen for it, "" if there was no choice. size: of the weights that a
    forward of its target reads, None where that is not said."""

    name: str
    setting: str

    @property
    def size(self) -> Size | None: ...

    def write(self, prompts: Ids, numbers: Sequence[int], task: Task) -> Written:
        """Continue prompts, as one batch. numbers: of their random streams."""
        ...


@dataclass(frozen=True)
class Ours:
    """c2t with a policy."""

    name: str
    setting: str
    pair: Pair
    policy: Policy

    @property
    def size(self) -> Size | None:
        """See `Contender`. Hierarchical speculation reads a second copy of the target as well."""
        return None if isinstance(self.policy, Hierarchical) else size_of_target(self.pair.target)

    def write(self, prompts: Ids, numbers: Sequence[int], task: Task) -> Written:
        """See `Contender.write`."""
        limit, sampling, eos = task
        start = time.perf_counter()
        steps = generate(
            self.pair.target,
            self.pair.draft,
            self.policy,
            prompts,
            max_new_tokens=limit,
            sampling=sampling,
            eos=eos,
            sequences=numbers,
        )
        return timed(steps, len(prompts), task, start)


def timed(steps: Iterator[Step], prompts: int, task: Task, start: float) -> Written:
    """Run the rounds of this many prompts, which have been decoded since `start`, to their end."""
    trace, first = Trace(prompts), 0.0
    for step in steps:
        first = first or time.perf_counter() - start
        trace.add(step)
    seconds = time.perf_counter() - start
    tokens = trace.finish([len(cut(new, task.max_new_tokens, task.eos)) for new in trace.tokens])
    return Written(tokens, first, seconds, total(trace.statistics))


@dataclass(frozen=True)
class Transformers:
    """transformers' `generate`, with options of its own."""

    name: str
    setting: str
    model: PreTrainedModel
    options: dict[str, Any] = field(default_factory=dict)
    size: Size | None = None

    def write(self, prompts: Ids, numbers: Sequence[int], task: Task) -> Written:
        """See `Contender.write`. Prompts are padded on the left, as transformers wants them."""
        limit, sampling, eos = task
        longest = max(map(len, prompts))
        where = self.model.device
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=where)
        seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=where)
        sampled = {"temperature": sampling.temperature, "top_k": 0, "top_p": 1.0} if sampling.temperature else {}
        torch.manual_seed(numbers[0])
        watch, start = FirstToken(), time.perf_counter()
        texts = self.model.generate(
            ids,
            attention_mask=seen,
            max_new_tokens=limit,
            do_sample=bool(sampling.temperature),
            eos_token_id=sorted(eos),
            pad_token_id=0,
            streamer=watch,
            **sampled,
            **self.options,
        )
        rows = texts[:, longest:].tolist()  # waits for the device
        seconds = time.perf_counter() - start
        return Written([cut(row, limit, eos) for row in rows], watch.at - start, seconds)


@dataclass(frozen=True)
class Compiled(Transformers):
    """transformers' `generate` with a decoding step that `torch.compile` makes for a cache of a fixed length. Takes one
    prompt."""

    caches: dict[int, StaticCache] = field(default_factory=dict)

    def write(self, prompts: Ids, numbers: Sequence[int], task: Task) -> Written:
        """See `Contender.write`. A longer text needs a longer cache, for which the step is compiled again, before the
        clock starts. Inductor packs weights in bfloat16 for fast products only where it may take them as constants,
        and `torch.compile`'s own option for that comes too late."""
        [prompt] = prompts
        length = CACHED
        while length < len(prompt) + task.max_new_tokens:
            length *= 2
        is_new = length not in self.caches
        cache = self.caches.setdefault(length, StaticCache(self.model.config, max_cache_len=length))
        compiled = CompileConfig(dynamic=False, mode="default")
        compiled._compile_all_devices = True  # transformers compiles by itself on a GPU only
        options = {**self.options, "past_key_values": cache, "compile_config": compiled}
        with inductor.patch(freezing=True):
            if is_new:  # the second token is the first compiled step's
                first = Transformers(self.name, self.setting, self.model, {**options, "min_new_tokens": 2})
                first.write(prompts, numbers, task._replace(max_new_tokens=2))
            cache.reset()
            return Transformers(self.name, self.setting, self.model, options).write(prompts, numbers, task)


def no_compiler() -> str | None:
    """Say that Inductor has no compiler for the step of `Compiled`; None if it has."""
    program = os.environ.get("CXX", "g++")
    return None if shutil.which(program) else f"there is no C++ compiler {program}, which CXX may name"


class FirstToken(BaseStreamer):
    """Time of the first new token. transformers passes the prompt before it."""

    def __init__(self) -> None:
        self.at, self._prompt = 0.0, True

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, or new tokens."""
        if not self._prompt:
            self.at = self.at or time.perf_counter()
        self._prompt = False

    def end(self) -> None:
        """Take the end of the text."""


class Contenders(NamedTuple):
    """Everything that is compared. ours: c2t, plain decoding first. generate: transformers' plain loop, by dtype.
    others: rivals of the same name differ in their setting, and the fastest of them competes."""

    ours: list[Ours]
    generate: list[Transformers]
    others: dict[str, list[Contender]]


def contenders(
    pair: Pair, plain: Policy, chosen: Policy, how: Callable[[Policy], str], batch: int, skipped: Sequence[str] = ()
) -> Contenders:
    """Return what competes at a batch size. chosen: the policy to show; with hierarchical speculation also its trees
    alone. how(policy): its text. skipped: names of what does not compete, and is not loaded.

    transformers' prompt lookup and its compiled step generate one text at a time. No pair has an assistant, a smaller
    model with the same tokenizer.
    """
    tree = tree_of(chosen)
    ours = [Ours(PLAIN, "", pair, plain), Ours(TREE, how(tree), pair, tree)]
    if tree is not chosen:
        ours.append(Ours(HIERARCHICAL, how(chosen), pair, chosen))
    model = cache(partial(stock, pair))  # of a dtype
    loops = [
        Transformers(loop, "", model(name)) for loop, name in zip(LOOPS, DTYPES, strict=True) if loop not in skipped
    ]
    others: dict[str, list[Contender]] = {}
    if batch == 1 and LOOKUP not in skipped:
        others[LOOKUP] = [
            Transformers(LOOKUP, f"{count} tokens, {name}", model(name), {"prompt_lookup_num_tokens": count})
            for name in DTYPES
            for count in LOOKED_UP
        ]
    if batch == 1 and COMPILED not in skipped:
        others[COMPILED] = [Compiled(COMPILED, name, stock(pair, name)) for name in DTYPES]
    return Contenders(ours, loops, others)


def tree_of(policy: Policy) -> Policy:
    """Return the policy of the trees in hierarchical speculation, else the policy itself."""
    return policy.policy if isinstance(policy, Hierarchical) else policy


def stock(pair: Pair, dtype: str) -> PreTrainedModel:
    """Return the pair's target as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(
        pair.sources["target"][0], dtype=getattr(torch, dtype), trust_remote_code=False
    ).eval()
