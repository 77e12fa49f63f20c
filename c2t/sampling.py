"""From logits to the next token: bias, penalties, temperature and filters, then the Gumbel-max trick.

The sample at absolute position i of sequence s depends only on (seed, s, i) and on the distribution. So the same seed
gives the same text with every tree and with plain decoding, at any batch size, live or replayed.

At each position every token has its own random number, so similar distributions almost always give the same token. The
probability is at least (1 - d) / (1 + d) at a total variation distance of d. See Daliri, Musco and Suresh 2024,
"Coupling without Communication and Drafter-Invariant Speculative Decoding". Inverting the cumulative distribution has
no such bound: a rounding error in one token's probability shifts the intervals of all tokens after it.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.errors import InputError, check_kind, check_number, check_whole, short_repr, whole
from c2t.kernels import walk
from c2t.kernels.argmax import argmax
from c2t.kernels.noise import Noise

VERSION = 3  # of sampled texts and their trees: it rises when the same seed gives others
CACHED, ON_DEVICE = 2**16, 2**25  # logits that get noise together: those that fit a core's cache; 256 MB on a GPU
SUMMED, ALIGNED = 64, 8  # rows whose sums are computed together on a GPU, and numbers that an aligned row holds
SEEDS = 2**32  # that `new_seed` chooses from: short enough to be typed
LEAST = 1e-4  # smallest temperature and penalty, 1 / LEAST the largest: outside, logits overflow or round to ties
PENALTY, BIAS = 2.0, 100.0  # largest penalty of a count, and largest bias, as OpenAI's API has them
BIASES = 1024  # biased tokens at most


class TokenCounts(NamedTuple):
    """How often each token occurs in B texts, for penalties; None where no penalty reads it.

    text: in the prompt and the new tokens. generated: in the new tokens alone.
    """

    text: Int[Tensor, "B V"] | None
    generated: Int[Tensor, "B V"] | None

    def plus(self, tokens: Int[Tensor, "B m"], real: Bool[Tensor, "B m"]) -> "TokenCounts":
        """Return the counts with these further new tokens, of which only the real ones count."""
        tokens, ones = torch.where(real, tokens, 0), real.int()
        return TokenCounts(*(None if count is None else count.scatter_add(1, tokens, ones) for count in self))

    def select(self, rows: Int[Tensor, " b"]) -> "TokenCounts":
        """Return the counts of these rows."""
        return TokenCounts(*(None if count is None else count[rows] for count in self))

    def join(self, other: "TokenCounts") -> "TokenCounts":
        """Return the counts with the rows of others, which the same penalties read, appended."""
        pairs = zip(self, other, strict=True)
        return TokenCounts(*(None if count is None else torch.cat([count, further]) for count, further in pairs))


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of the target. temperature 0 is greedy.

    Off are top_k 0, top_p 1, min_p 0, repetition_penalty 1, and a frequency or presence penalty of 0.

    min_p: least probability, relative to that of the most probable token. repetition_penalty: of the tokens of prompt
    and text. frequency_penalty, presence_penalty: subtracted from the logit of a generated token, for each time and
    once. logit_bias: token ids -> what is added to their logits, -100 to 100.

    Penalties and bias apply at temperature 0 too. Raises InputError for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()  # stored as pairs in the order of their ids

    def __post_init__(self):
        whole(self, "top_k", "seed")
        for name in ("temperature", "top_p", "repetition_penalty", "min_p", "frequency_penalty", "presence_penalty"):
            check_number(name, getattr(self, name))
        bounds = f"at least {LEAST:g}, at most {1 / LEAST:g}"
        if self.temperature != 0 and not LEAST <= self.temperature <= 1 / LEAST:
            raise InputError(f"temperature = {self.temperature}: must be 0 (greedy), or {bounds}")
        if self.top_k < 0:
            raise InputError(f"top_k = {self.top_k}: must be 0 (off) or positive")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p = {self.top_p}: must be in (0, 1]; 1 is off")
        if not LEAST <= self.repetition_penalty <= 1 / LEAST:
            raise InputError(f"repetition_penalty = {self.repetition_penalty}: must be {bounds}; 1 is off")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min_p = {self.min_p}: must be in [0, 1]; 0 is off")
        for name in ("frequency_penalty", "presence_penalty"):
            if not -PENALTY <= getattr(self, name) <= PENALTY:
                raise InputError(f"{name} = {getattr(self, name)}: must be from -{PENALTY:g} to {PENALTY:g}; 0 is off")
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @property
    def filters(self) -> bool:
        """True if min-p, top-k or top-p is on."""
        return bool(self.min_p or self.top_k) or self.top_p < 1

    @property
    def rescores(self) -> bool:
        """True if a penalty or a bias changes logits, at any temperature."""
        return bool(self.logit_bias) or self.counts_text or self.counts_generated

    @property
    def counts_text(self) -> bool:
        """True if a penalty counts the tokens of prompt and text."""
        return self.repetition_penalty != 1

    @property
    def counts_generated(self) -> bool:
        """True if a penalty counts the generated tokens."""
        return bool(self.frequency_penalty or self.presence_penalty)

    def check_vocabulary(self, size: int) -> None:
        """Raise InputError for a bias of a token outside a vocabulary of this size."""
        largest = max(dict(self.logit_bias), default=-1)
        if largest >= size:
            raise InputError(f"logit_bias: token id {largest} is outside the vocabulary 0..{size - 1}")

    @property
    def version(self) -> int:
        """Version of the sampled texts and their trees: VERSION, or 1 for greedy ones."""
        return VERSION if self.temperature else 1

    def count(
        self,
        tokens: Int[Tensor, "B P"],
        lengths: Int[Tensor, " B"],
        generated: Int[Tensor, " B"],
        vocabulary: int,
    ) -> TokenCounts | None:
        """Return the counts that the penalties read of texts of lengths[r] tokens, of which the last generated[r] are
        new ones; None without penalties."""
        if not (self.counts_text or self.counts_generated):
            return None
        index, zeros = torch.arange(tokens.shape[1], device=tokens.device), tokens.new_zeros(len(tokens), vocabulary)
        real, text, new = index < lengths[:, None], None, None
        if self.counts_text:
            text = zeros.int().scatter_add(1, tokens, real.int())
        if self.counts_generated:
            new = zeros.int().scatter_add(1, tokens, (real & (index >= (lengths - generated)[:, None])).int())
        return TokenCounts(text, new)

    def process(self, logits: Float[Tensor, "B V"], counts: TokenCounts | None = None) -> Float[Tensor, "B V"]:
        """Return the logits after bias, penalties, temperature, min-p, top-k and top-p, in the order of vLLM; -inf for
        excluded tokens.

        counts: of the text before; None if no penalty applies.
        """
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # as generate does; half precision would round the results to ties
        if self.logit_bias:
            ids, biases = (torch.tensor(column, device=logits.device) for column in zip(*self.logit_bias, strict=True))
            logits = logits.index_add(1, ids, biases.to(logits.dtype).expand(len(logits), -1))
        if counts is not None:
            logits = self._penalised(logits, counts)
        if self.temperature == 0:
            return logits
        logits = logits / self.temperature
        if self.min_p:
            least = logits.amax(-1, keepdim=True) + math.log(self.min_p)
            logits = logits.masked_fill(logits < least, float("-inf"))
        if self.top_k:
            lowest = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < lowest, float("-inf"))
        if self.top_p < 1:
            ascending, order = logits.sort(dim=-1)
            sums = padded_sums(ascending) if ascending.is_cuda else ascending.softmax(-1).cumsum(-1)
            outside = sums <= 1 - self.top_p
            outside[:, -1] = False
            logits = logits.masked_fill(outside.scatter(1, order, outside), float("-inf"))
        return logits

    def _penalised(self, logits: Float[Tensor, "B V"], counts: TokenCounts) -> Float[Tensor, "B V"]:
        """Return the logits after the penalties."""
        if counts.text is not None:
            penalised = torch.where(logits < 0, logits * self.repetition_penalty, logits / self.repetition_penalty)
            logits = torch.where(counts.text > 0, penalised, logits)
        if counts.generated is not None:
            times = counts.generated.to(logits.dtype)
            logits = logits - self.frequency_penalty * times - self.presence_penalty * (times > 0)
        return logits

    def sample(
        self,
        logits: Float[Tensor, "B V"],
        sequence: Int[Tensor, " B"],
        position: Int[Tensor, " B"],
        counts: TokenCounts | None = None,
    ) -> Int[Tensor, " B"]:
        """Sample the token at `position` of each `sequence`.

        It is the argmax of the logits, with Gumbel noise unless temperature is 0; the lowest id of equal ones.
        """
        logits = self.process(logits, counts)
        if self.temperature == 0:
            return argmax(logits)
        key = stream_key(self.seed, sequence, position)
        return walk.draw(logits, key) if walk.serves(logits) else gumbel_max(logits, key)


def new_seed() -> int:
    """Return a seed that nobody has chosen."""
    return secrets.randbelow(SEEDS)


def _checked_bias(bias: Any) -> tuple[tuple[int, float], ...]:
    """Return the biased tokens in the order of their ids, with their biases; those of 0 are left out."""
    check_kind("logit_bias", bias, Mapping | tuple, "a mapping of token ids to biases, such as {42: -100.0}")
    if len(bias) > BIASES:
        raise InputError(f"logit_bias has {len(bias):,} tokens: at most {BIASES:,} can be biased")
    try:
        biases = dict(bias)
    except (TypeError, ValueError):
        raise InputError(f"logit_bias = {short_repr(bias)}: a mapping of token ids to biases is needed") from None
    for token, value in biases.items():
        check_whole("logit_bias: a token id", token, least=0)
        check_number(f"logit_bias of token {token}", value)
        if not -BIAS <= value <= BIAS:
            raise InputError(f"logit_bias of token {token} = {value}: must be from -{BIAS:g} to {BIAS:g}")
    return tuple(sorted((int(token), float(value)) for token, value in biases.items() if value))


def padded_sums(ascending: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """Return the probability of each token and those before it. A row's sums do not depend on how many rows there are,
    nor on where it stands: on a GPU their order follows from a batch's shape and from a row's alignment."""
    rows, size = ascending.shape
    padded = torch.nn.functional.pad(ascending, (-size % ALIGNED, 0, 0, -rows % SUMMED), value=float("-inf"))
    sums = [part.softmax(-1).cumsum(-1) for part in padded.split(SUMMED)]
    return torch.cat(sums)[:rows, -size:]


def gumbel_max(logits: Float[Tensor, "B V"], key: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return tokens sampled from these distributions: the argmax of the logits plus Gumbel noise. A token of -inf is
    never sampled."""
    ids = torch.arange(logits.shape[1], device=key.device)
    rows = max(1, (ON_DEVICE if logits.is_cuda else CACHED) // len(ids))
    parts = zip(logits.split(rows), key.split(rows), strict=True)
    return torch.cat([(part.double() + gumbel(keys, ids)).argmax(-1) for part, keys in parts])


def gumbel(key: Int[Tensor, "..."], ids: Int[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Return the float64 Gumbel noise of these token ids for the sample with this key."""
    # Small uniforms win the argmax, so log1p preserves all of their bits; those near 1 lose some.
    return -(-torch.log1p(-uniforms_at(key, ids + 1))).log()


def invert(probs: Float[Tensor, "... V"], uniforms: Float[Tensor, "... n"]) -> Int[Tensor, "... n"]:
    """Return tokens by inverting the float64 cumulative distribution at these uniforms; `probs` need not sum to 1."""
    cumulative = probs.cumsum(-1)
    # right=True gives the first token whose cumulative mass exceeds the point, so probability 0 is never sampled.
    return torch.searchsorted(cumulative, uniforms * cumulative[..., -1:], right=True).clamp(max=probs.shape[-1] - 1)


@lru_cache(maxsize=1024)  # bounded, because each request of a server may have a new seed
def hashed(seed: int) -> int:
    """Return the hash of a seed of any size as an int64, the start of `stream_key`."""
    wrapped = (int(seed) + (1 << 63)) % (1 << 64) - (1 << 63)
    return int(_mix(torch.tensor(wrapped, device="cpu")))


def check_sequence(number: int) -> None:
    """Raise InputError unless the number of a random stream is a whole number of 64 bits."""
    check_whole("sequence", number, least=-(2**63), most=2**63 - 1)


def stream_key(
    seed: int, sequence: Int[Tensor, " B"], position: Int[Tensor, " B"], number: int = 0
) -> Int[Tensor, " B"]:
    """Return 64 random bits for each position of a sequence, from a counter-based hash (SplitMix64's finaliser, once
    per coordinate).

    number: 0 for the target's own sample, 1, 2, ... for decisions on sampled candidates, -1 for the draft's samples.
    """
    return mix_in(mix_in(stream_of(seed, sequence), position), torch.full_like(position, number))


def stream_of(seed: int, sequence: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return the key of each sequence's random stream."""
    return mix_in(torch.full_like(sequence, hashed(seed)), sequence)


def noise_at(root: Int[Tensor, " B"], temperature: float, seed: int, sequence: Int[Tensor, " B"]) -> Noise:
    """Return the noise of the samples after roots at these positions of these sequences."""
    temperatures = torch.full(root.shape, temperature, dtype=torch.float32, device=root.device)
    return Noise(temperatures, stream_of(seed, sequence), root)


def uniform(
    seed: int, sequence: Int[Tensor, " B"], position: Int[Tensor, " B"], number: int = 0
) -> Float[Tensor, " B"]:
    """Return float64 uniforms in [0, 1); arguments as in `stream_key`."""
    return _unit(stream_key(seed, sequence, position, number))


def uniforms(key: Int[Tensor, "..."], count: int) -> Float[Tensor, "... n"]:
    """Return `count` float64 uniforms in (0, 1) for each key."""
    return uniforms_at(key, torch.arange(1, count + 1, device=key.device))


def uniforms_at(key: Int[Tensor, "..."], number: Int[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Return the uniforms number `number` of each key, float64 in (0, 1)."""
    values = _unit(_mix(key[..., None] + number * -0x61C8864680B583EB)) + 2.0**-54
    return values.clamp(max=1 - 2.0**-53)  # the largest would round to 1


def mix_in(key: Int[Tensor, "..."], value: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return a new key, hashed from a key and a value."""
    return _mix(key + (value + 1) * -0x61C8864680B583EB)


def _unit(bits: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    return _shift(bits, 11).double() * 2.0**-53


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right logically: torch's own shift is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shift(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shift(x, 31)
