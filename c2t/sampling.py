"""From logits to the next token: processors in the order of Hugging Face generate, then the Gumbel-max trick.

The sample at absolute position i of sequence s depends only on (seed, s, i) and on the distribution. So the same seed
gives the same text with every tree and with plain decoding, at any batch size, live or replayed.

At each position every token has its own random number, so similar distributions almost always give the same token. The
probability is at least (1 - d) / (1 + d) at a total variation distance of d. See Daliri, Musco and Suresh 2024,
"Coupling without Communication and Drafter-Invariant Speculative Decoding". Inverting the cumulative distribution has
no such bound: a rounding error in one token's probability shifts the intervals of all tokens after it.
"""

import secrets
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.errors import InputError, check_number, check_whole, whole
from c2t.kernels import walk
from c2t.kernels.argmax import argmax
from c2t.kernels.noise import Noise

VERSION = 3  # of sampled texts and their trees: it rises when the same seed gives others
CACHED, ON_DEVICE = 2**16, 2**25  # logits that get noise together: those that fit a core's cache; 256 MB on a GPU
SEEDS = 2**32  # that `new_seed` chooses from: short enough to be typed
LEAST = 1e-4  # smallest temperature and penalty, 1 / LEAST the largest: outside, logits overflow or round to ties


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of the target. temperature 0 is greedy; top_k 0, top_p 1 and repetition_penalty 1 are off.

    Raises InputError for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self):
        whole(self, "top_k", "seed")
        for name in ("temperature", "top_p", "repetition_penalty"):
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

    @property
    def filters(self) -> bool:
        """True if top-k or top-p is on."""
        return bool(self.top_k) or self.top_p < 1

    @property
    def version(self) -> int:
        """Version of the sampled texts and their trees: VERSION, or 1 for greedy ones."""
        return VERSION if self.temperature else 1

    def process(self, logits: Float[Tensor, "B V"], seen: Bool[Tensor, "B V"] | None = None) -> Float[Tensor, "B V"]:
        """Return the logits after repetition penalty, temperature, top-k and top-p; -inf for excluded tokens.

        seen: tokens that the repetition penalty applies to.
        """
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # as generate does; half precision would round the results to ties
        if seen is not None and self.repetition_penalty != 1:
            penalised = torch.where(logits < 0, logits * self.repetition_penalty, logits / self.repetition_penalty)
            logits = torch.where(seen, penalised, logits)
        if self.temperature == 0:
            return logits
        logits = logits / self.temperature
        if self.top_k:
            lowest = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < lowest, float("-inf"))
        if self.top_p < 1:
            ascending, order = logits.sort(dim=-1)
            outside = ascending.softmax(-1).cumsum(-1) <= 1 - self.top_p
            outside[:, -1] = False
            logits = logits.masked_fill(outside.scatter(1, order, outside), float("-inf"))
        return logits

    def sample(
        self,
        logits: Float[Tensor, "B V"],
        sequence: Int[Tensor, " B"],
        position: Int[Tensor, " B"],
        seen: Bool[Tensor, "B V"] | None = None,
    ) -> Int[Tensor, " B"]:
        """Sample the token at `position` of each `sequence`.

        It is the argmax of the logits, with Gumbel noise unless temperature is 0; the lowest id of equal ones.
        """
        logits = self.process(logits, seen)
        if self.temperature == 0:
            return argmax(logits)
        key = stream_key(self.seed, sequence, position)
        return walk.draw(logits, key) if walk.serves(logits) else gumbel_max(logits, key)


def new_seed() -> int:
    """Return a seed that nobody has chosen."""
    return secrets.randbelow(SEEDS)


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
