"""The decoder that people load in their own code: a pair, a policy, and `generate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import torch

from c2t.classifier import TreeClassifier
from c2t.decoding import Policy, cut, generate
from c2t.errors import InputError
from c2t.models.pairs import Pair, load_pair
from c2t.policies.c2t import C2T
from c2t.policies.plain import Plain
from c2t.sampling import Sampling
from c2t.statistics import Statistics, Trace, total


@dataclass(frozen=True)
class Output:
    """What one call of `SpeculativeDecoder.generate` returns, one entry a prompt.

    sequences: new token ids. texts: the same, decoded. statistics: per prompt.
    """

    sequences: list[list[int]]
    texts: list[str]
    statistics: list[Statistics]

    @property
    def text(self) -> str:
        """The only text; for several prompts see `texts`."""
        if len(self.texts) != 1:
            raise InputError(f"there are {len(self.texts)} texts; read .texts")
        return self.texts[0]

    @property
    def total(self) -> Statistics:
        return total(self.statistics)


class SpeculativeDecoder:
    """Decodes with a pair and a policy: the target's own text, in fewer target forwards."""

    def __init__(self, pair: Pair, policy: Policy):
        self.pair, self.policy = pair, policy
        check_policy(policy, pair)

    @classmethod
    def from_pretrained(
        cls,
        pair: str | None = None,
        *,
        target: str | Path | None = None,
        draft: str | Path | None = None,
        policy: Policy | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        device_map: str | dict | None = None,
    ) -> "SpeculativeDecoder":
        """Load a pair (see `load_pair`); the policy defaults to C2T with the pair's own classifier at its beta."""
        loaded = load_pair(pair, target=target, draft=draft, device=device, dtype=dtype, device_map=device_map)
        if policy is None:
            classifier = TreeClassifier.from_pretrained(loaded.name, device=loaded.target.device)
            policy = C2T(classifier, beta=classifier.config.beta)
        return cls(loaded, policy)

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        *,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        sequences: Sequence[int] | None = None,
    ) -> Output:
        """Continue one prompt or several, given as text or token ids, in one batch.

        Each row is what it would be alone: rows have trees of their own size and end at their own time, with an EOS
        token or after `max_new_tokens`. The same seed gives the same text under every policy; `sequences` number the
        prompts' random streams (default 0, 1, ...). Raises InputError for empty or too long prompts.
        """
        ids = self.encode(prompts)
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens = {max_new_tokens} must be at least 1")
        for number, prompt in enumerate(ids):
            check_length(len(prompt), max_new_tokens, self.pair.target.max_positions, f"prompt {number}")
        draft = None if isinstance(self.policy, Plain) else self.pair.draft
        sampling = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
        trace = Trace(len(ids))
        for step in generate(
            self.pair.target,
            draft,
            self.policy,
            ids,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            eos=self.eos,
            sequences=sequences,
        ):
            trace.add(step)
        tokens = trace.finish([len(cut(new, max_new_tokens, self.eos)) for new in trace.tokens])
        texts = self.pair.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return Output(tokens, texts, trace.statistics)

    @property
    def eos(self) -> frozenset[int]:
        return self.pair.target.eos

    def encode(self, prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]) -> list[list[int]]:
        """Token ids of each prompt; raises InputError for an empty one or an id outside the vocabulary."""
        if isinstance(prompts, str):
            prompts = [prompts]
        if hasattr(prompts, "tolist"):  # a tensor or an array
            prompts = prompts.tolist()
        if len(prompts) and isinstance(prompts[0], Integral):
            prompts = [prompts]
        ids = [self.pair.tokenizer(p).input_ids if isinstance(p, str) else [int(token) for token in p] for p in prompts]
        if not ids or not all(ids):
            raise InputError("an empty prompt: give at least one token to continue")
        vocabulary = self.pair.target.config.vocab_size
        for prompt in ids:
            if not 0 <= min(prompt) <= max(prompt) < vocabulary:
                raise InputError(f"a prompt has token ids outside the target's vocabulary 0..{vocabulary - 1}")
        return ids


def check_length(prompt: int, new: int, limit: int, what: str) -> None:
    """Raise InputError if prompt and new tokens exceed the target's positions."""
    if prompt + new > limit:
        raise InputError(
            f"{what}: {prompt} tokens + {new} new ones exceed the target's {limit} positions; shorten either"
        )


def check_policy(policy: Policy, pair: Pair) -> None:
    """Raise InputError for a policy that cannot run on this pair."""
    k, vocabulary = getattr(policy, "K", 1), pair.target.config.vocab_size
    if k > vocabulary:
        raise InputError(f"K = {k} is more than the pair's vocabulary of {vocabulary} tokens; choose a smaller K")
