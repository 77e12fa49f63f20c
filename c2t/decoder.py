"""The decoder for use in Python code: a pair, a policy, and `generate`."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from c2t.batching import BatchDecoder, Request
from c2t.costs.policy_text import policy_for, with_budget
from c2t.costs.statistics import Statistics, Trace, total
from c2t.cuda_graphs.draft import StaticDraft, StaticPolicy
from c2t.cuda_graphs.target import SLOTS, StaticTarget
from c2t.decoding import Step
from c2t.errors import InputError, check_kind, check_whole
from c2t.grammars.constraint import Constraint
from c2t.grammars.row_constraint import RowConstraint
from c2t.models.loading.load import Pair, load_pair
from c2t.models.loading.own_model import pair_and_target
from c2t.models.target.target import Target
from c2t.models.target.tensor_parallel import from_first_process
from c2t.output import tree_repr
from c2t.output.stoppable import StoppableText, checked_stops
from c2t.policies.default import default_policy, policy_of_folder
from c2t.policies.spec import label_of
from c2t.protocols import Policy
from c2t.sampling import Sampling, new_seed
from c2t.verification.compatibility import check_compatible, check_constraint, on_device
from c2t.verification.logprobs import TokenLogprob, check_logprobs
from c2t.verification.prompt_ids import check_length, check_new_tokens
from c2t.verification.prompts import Prompt, Prompts, encode, encode_one
from c2t.verification.target_verifier import generate
from c2t.verification.texts import BatchTexts, new_text

SHOWN = 60  # characters of the first text that an Output prints


@dataclass(frozen=True, repr=False)
class Output:
    """Result of one call of `SpeculativeDecoder.generate`, one entry a prompt.

    sequences: new token ids. texts: the same, decoded, up to a stop string. statistics: per prompt. seed: of the random
    numbers; given again, it gives the same texts. logprobs: of each new token, if `generate` was asked for them.
    """

    sequences: list[list[int]]
    texts: list[str]
    statistics: list[Statistics]
    seed: int = 0
    logprobs: list[list[TokenLogprob]] | None = None

    def __repr__(self) -> str:
        text = self.texts[0] if self.texts else ""
        shown = text if len(text) <= SHOWN else text[: SHOWN - 1] + "\u2026"
        return f"Output({tree_repr.count(len(self.texts), 'text')}, {self.total.summary()}: {shown!r})"

    @property
    def text(self) -> str:
        """The only text; for several prompts see `texts`."""
        if len(self.texts) != 1:
            raise InputError(f"there are {len(self.texts)} texts; read .texts")
        return self.texts[0]

    @property
    def total(self) -> Statistics:
        return total(self.statistics)


class Parts(NamedTuple):
    """The target, draft and policy that `generate` decodes with."""

    target: Target | StaticTarget
    draft: Any  # a DraftModel, or None
    policy: Policy

    def record(self) -> None:
        """Record all graphs, once a prompt was read."""
        self.target.record()
        if isinstance(self.policy, StaticPolicy):
            self.draft.record()


class SpeculativeDecoder:
    """Decodes with a pair and a policy: the target's own text, in fewer target forwards.

    policy: one of `c2t.policies`, or its text as on the command line: "threshold:threshold=0.1,levels=3". A policy that
    is not exact gives a warning.

    graph_tokens: decode by CUDA graphs, with memory for texts of this many tokens, prompt included (0: no graphs).
    Every tree's text is then plain decoding's, see docs/gpu.md; experimental. Where the draft phase has no fixed shapes
    (`StaticDraft.refuses`), graphs verify only. InputError for a target that cannot be recorded.

    budget: maximum number of tokens that a round verifies, over all prompts. The most confident nodes of the policy's
    trees are selected. "auto" chooses the number for the most tokens per second on this machine, by costs that are
    measured at the first use; a file gives other costs. See `c2t.policies.budget`.
    """

    def __init__(self, pair: Pair, policy: Policy | str, graph_tokens: int = 0, budget: int | str | Path | None = None):
        check_kind("pair", pair, Pair, "a pair that load_pair has loaded")
        policy = policy_for(pair, policy)
        if budget is not None:
            policy = with_budget(pair, policy, budget)
        check_whole("graph_tokens", graph_tokens, least=0)
        check_compatible(policy, pair.target)
        policy = on_device(policy, pair.target.device)
        self.pair, self.policy, self.graph_tokens = pair, policy, graph_tokens
        if not policy.exact:
            warnings.warn(f"{type(policy).__name__} is not exact: its text is not the target's own", stacklevel=2)
        self._static: dict[int, Parts] = {}
        if graph_tokens:
            self._static[1] = self._by_graphs(1)  # raises InputError early for what graphs do not support

    def __repr__(self) -> str:
        graphs = f", graph_tokens={self.graph_tokens}" if self.graph_tokens else ""
        return f"SpeculativeDecoder({self.pair!r}, policy={label_of(self.policy)!r}{graphs})"

    @classmethod
    def from_pretrained(
        cls,
        pair: str | Path | None = None,
        *,
        target: str | Path | None = None,
        draft: str | Path | None = None,
        policy: Policy | str | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        device_map: str | dict | None = None,
        graph_tokens: int = 0,
        budget: int | str | Path | None = None,
        trust_remote_code: bool = False,
    ) -> "SpeculativeDecoder":
        """Load a pair or a model of one's own (see `load_pair`), and return its decoder.

        The policy defaults to `default_policy`: the one that the pair names, C2T with the pair's classifier, or a
        threshold on the joint probability, which needs no training.
        """
        loaded = load_pair(
            pair,
            target=target,
            draft=draft,
            device=device,
            dtype=dtype,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
        )
        if policy is None:
            is_pair = pair_and_target(pair, target)[0] is not None
            trained = None if is_pair else policy_of_folder(loaded.heads)
            policy = trained or default_policy(loaded.name if is_pair else "")
        return cls(loaded, policy, graph_tokens, budget)

    def warm_up(self, rows: int = 1) -> None:
        """Decode two tokens, so that the first request need not wait for what is built at the first use.

        These are packed weights, costs of a budget, and CUDA graphs for `rows` prompts.
        """
        check_whole("rows", rows, least=1)
        if not self.graph_tokens:
            self.generate([[0]], max_new_tokens=2)
            return
        parts = self._parts(rows)
        list(generate(*parts, [[0]] * rows, max_new_tokens=2, sampling=Sampling()))
        parts.record()

    def generate(
        self,
        prompts: Prompts,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        *,
        chat: bool = True,
        system: str | None = None,
        stop: str | Sequence[str] = (),
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] = MappingProxyType({}),
        seed: int | None = None,
        sequences: Sequence[int] | None = None,
        rule: str | None = None,
        constraint: Constraint | Sequence[Constraint | None] | None = None,
        logprobs: int | None = None,
        watch: Callable[[Step], None] = lambda step: None,
    ) -> Output:
        """Answer or continue one prompt or several, in one batch.

        prompts: a text, a conversation, token ids, or a list of these, which are independent of each other. With a chat
        template a text is the user's turn of a new conversation; without one, or with chat=False, it is continued as it
        is. A conversation is a list of messages: [{"role": "user", "content": "Hello"}]. Token ids are used unchanged.
        system: the system turn before a text or a conversation.

        A prompt's text does not depend on the other prompts, by graphs only on how many there are. Rows have trees of
        different sizes and end independently: with an EOS token, after `max_new_tokens`, or with the token that
        completes a `stop` string, of which the text shows nothing. seed: None takes a new one for each call, which the
        Output has. sequences: numbers of the random streams (default 0, 1, ...).

        For the settings from top_k to logit_bias see `Sampling`. logprobs: with how many most probable tokens, 0 to 20,
        the Output has the log-probability of each new token by the target itself, before those settings.

        rule: how policies that sample their candidates are verified, "residual" (the default) or "target-only" (see
        `c2t.verify`). Both keep the target's law; under target-only, which is the rule of all others, the same seed
        gives the same text whatever the tree.

        constraint: what the texts must follow, such as `Grammar.json_schema(...)`, or a list with one or None for each
        prompt. A text that meets its limit of tokens is a prefix of one that follows it.

        watch(step): called with each round as it comes, the prompts' own forward first; the last round's tokens may run
        past the end of a text (see `cut`). Raises InputError for empty or too long prompts.
        """
        ids = self.encode(prompts, chat, system)
        check_new_tokens(max_new_tokens)
        stop = checked_stops(stop)
        check_kind("watch", watch, Callable, "a function of a round's Step")
        for number, prompt in enumerate(ids):
            check_length(len(prompt), max_new_tokens, self.pair.target.max_positions, f"prompt {number}")
            if self.graph_tokens and len(prompt) + max_new_tokens > self.graph_tokens:
                total = f"{len(prompt)} tokens + {max_new_tokens} new ones"
                raise InputError(f"prompt {number}: {total} exceed the limit of {self.graph_tokens} (graph_tokens)")
        constraints = self._constraints(constraint, len(ids))
        sampling = self._sampling(
            seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logit_bias=logit_bias,
        )
        check_logprobs("logprobs", logprobs)
        trace, scores = Trace(len(ids)), [[] for _ in ids]
        constrained = [row is not None for row in constraints or [None] * len(ids)]
        texts = BatchTexts(self.pair.tokenizer, stop, constrained, max_new_tokens, self.eos)
        for step in generate(
            *self._parts(len(ids)),
            ids,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            eos=self.eos,
            sequences=sequences,
            rule=rule,
            constraints=constraints,
            logprobs=logprobs,
            stopped=texts.stopped,
        ):
            trace.add(step)
            texts.add(step)
            if logprobs is not None:
                for number, values in zip(step.rows.tolist(), step.extra["logprobs"], strict=True):
                    scores[number] += values
            watch(step._replace(extra={**step.extra, "tokenizer": self.pair.tokenizer}))
        tokens = trace.finish(texts.ends(trace.tokens))
        scored = None if logprobs is None else [row[: len(new)] for row, new in zip(scores, tokens, strict=True)]
        return Output(tokens, texts.finish(tokens), trace.statistics, sampling.seed, scored)

    def stream(
        self,
        prompts: Prompts | Iterator[Prompt],
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        *,
        chat: bool = True,
        system: str | None = None,
        stop: str | Sequence[str] = (),
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] = MappingProxyType({}),
        seed: int | None = None,
        rule: str | None = None,
        constraint: Constraint | None = None,
        max_rows: int = 16,
        max_tokens: int = 16384,
    ) -> Iterator[tuple[int, list[int]]]:
        """Answer or continue prompts as `generate` does. Yield, round by round, a prompt's number and its next tokens.

        prompts: as in `generate`, or an iterator. At most `max_rows` prompts are decoded together; the next prompt is
        taken when a row is free. A prompt's number is its position, and the number of its random stream. The tokens end
        with the one that completes a `stop` string. constraint: what every text must follow. max_tokens: see
        `BatchDecoder`, with settings per prompt.

        Raises InputError as `generate` does, for a prompt that is too long only when it is taken. Also raises it with
        CUDA graphs, whose batches are fixed.
        """
        if self.graph_tokens:
            raise InputError("stream does not use CUDA graphs; use a decoder with graph_tokens = 0, or generate")
        check_new_tokens(max_new_tokens)
        stop = checked_stops(stop)
        sampling = self._sampling(
            seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logit_bias=logit_bias,
        )
        sampling.check_vocabulary(self.pair.target.config.vocab_size)
        if constraint is not None:
            self._row_constraint(constraint)  # raises InputError now, not with the first prompt
        batch = BatchDecoder(
            self.pair, self.policy, max_rows=max_rows, max_tokens=max_tokens, max_waiting=max_rows, rule=rule
        )
        if isinstance(prompts, Iterator):
            ids = (encode_one(self.pair, prompt, chat, system) for prompt in prompts)
        else:
            ids = iter(self.encode(prompts, chat, system))
        return _stream(batch, enumerate(ids), max_new_tokens, sampling, stop, constraint)

    def _sampling(self, seed: int | None, **settings: Any) -> Sampling:
        """Return the settings with the seed; for None a new one, the same in all processes of a split target. Greedy
        texts need none: theirs is 0."""
        sampling = Sampling(**settings, seed=0 if seed is None else seed)
        if seed is not None or not sampling.temperature:
            return sampling
        return replace(sampling, seed=from_first_process(new_seed()) if self.pair.target.is_split else new_seed())

    def _constraints(
        self, constraint: Constraint | Sequence[Constraint | None] | None, count: int
    ) -> list[RowConstraint | None] | None:
        """Return the constraint of each of `count` prompts."""
        if constraint is None:
            return None
        constraints = constraint if isinstance(constraint, list | tuple) else [constraint] * count
        if len(constraints) != count:
            raise InputError(f"constraint: {len(constraints)} for {count} prompts: give one for each, or one for all")
        if self.graph_tokens:
            raise InputError("CUDA graphs take no constraints: decode without graphs (graph_tokens = 0)")
        return [None if given is None else self._row_constraint(given) for given in constraints]

    def _row_constraint(self, constraint: Constraint) -> RowConstraint:
        """Return a constraint at the beginning of a text."""
        check_constraint(self.policy, constraint)
        return RowConstraint.of(constraint, self.pair.vocabulary)

    def _parts(self, rows: int) -> "Parts":
        """Return target, draft and policy for `rows` prompts; graphs are made for 1, 4, 16, ... of them."""
        if not self.graph_tokens:
            return Parts(self.pair.target, self.pair.draft, self.policy)
        size = 1
        while size < rows:
            size *= 4
        if size not in self._static:
            self._static[size] = self._by_graphs(size)
        return self._static[size]

    def _by_graphs(self, rows: int) -> "Parts":
        draft, policy = self.pair.draft, self.policy
        capacity = self.graph_tokens + policy.levels + 2  # the last round may run past the end
        target = StaticTarget(self.pair.target, rows, capacity, max(SLOTS, policy.size.tokens))
        if policy.levels and not StaticDraft.refuses(draft, policy):
            draft, policy = StaticDraft(draft, policy, rows, capacity), StaticPolicy(policy)
        return Parts(target, draft, policy)

    @property
    def eos(self) -> frozenset[int]:
        return self.pair.target.eos

    def encode(self, prompts: Prompts, chat: bool = True, system: str | None = None) -> list[list[int]]:
        """Return the token ids of each prompt; see `generate`, and `c2t.verification.prompts` for what is refused."""
        return encode(self.pair, prompts, chat, system)


def _stream(
    batch: BatchDecoder,
    prompts: Iterator[tuple[int, list[int]]],
    max_new_tokens: int,
    sampling: Sampling,
    stop: tuple[str, ...],
    constraint: Constraint | None,
) -> Iterator[tuple[int, list[int]]]:
    """Decode numbered prompts; take the next one only when a row is free."""
    numbers: dict[Request, int] = {}
    texts: dict[Request, StoppableText] = {}
    pair, constrained = batch.pair, constraint is not None
    while True:
        for number, ids in islice(prompts, batch.max_rows - len(numbers)):
            request = batch.submit(ids, max_new_tokens, sampling, sequence=number, constraint=constraint)
            numbers[request] = number
            texts[request] = new_text(pair.tokenizer, stop, pair.target.eos, constrained)
        if not numbers:
            return
        for request, tokens, finish in batch.step():  # nothing after a round that failed: its rows go on alone
            if finish == "failed":
                raise request.error
            text, number = texts[request], numbers[request]
            if stop:
                begin = text.tokens
                text.add(tokens)
                tokens = tokens[: text.tokens - begin]
            if text.stopped:
                batch.cancel(request)
            if text.stopped or finish is not None:
                del texts[request], numbers[request]
            yield number, tokens
