"""From logits to the next token: processors in Hugging Face generate's order, and the Gumbel-max trick.

The draw at absolute position i of sequence s depends on (seed, s, i) and on the distribution only. So the same seed
gives the same text for every tree construction, plain decoding included, at any batch size, live or replayed.

Each token has its own random number there, so two distributions that are close draw the same token nearly always: with
a probability of at least (1 - d) / (1 + d), d their total variation distance (Daliri, Musco and Suresh 2024, "Coupling
without Communication and Drafter-Invariant Speculative Decoding"). A point of the cumulative distribution would not do:
rounding shifts the bounds of all tokens behind the one that it changes.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.errors import InputError, check_number, check_whole, whole
from c2t.kernels import walk
from c2t.kernels.argmax import argmax
from c2t.kernels.noise import Noise

DRAWS = 3  # it rises when a seed draws other texts, or other trees grow along them
CACHED, ON_DEVICE = 2**16, 2**25  # noisy logits at once: what fits a core's cache; 256 MB of a GPU's memory
LEAST = 1e-4  # of temperatures and penalties; the largest is 1 / LEAST: beyond, logits overflow or are rounded alike


@dataclass(frozen=True)
class Sampling:
    """Settings of the target's sampling: temperature 0 is greedy; top_k 0 and top_p 1 keep every token. InputError for
    values out of range."""

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
        """True if tokens are excluded, whose logits have to be sorted for it."""
        return bool(self.top_k) or self.top_p < 1

    @property
    def draws(self) -> int:
        """Version of how texts are drawn, and trees grown along them: DRAWS where random numbers are in it, else 1."""
        return DRAWS if self.temperature else 1

    def process(self, logits: Float[Tensor, "B V"], seen: Bool[Tensor, "B V"] | None = None) -> Float[Tensor, "B V"]:
        """Return logits after repetition penalty (over the tokens `seen`), temperature, top-k and top-p; excluded
        tokens have -inf."""
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # as generate does; half precision would round the processors' results into ties
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

    def draw(
        self,
        logits: Float[Tensor, "B V"],
        sequence: Int[Tensor, " B"],
        position: Int[Tensor, " B"],
        seen: Bool[Tensor, "B V"] | None = None,
    ) -> Int[Tensor, " B"]:
        """Draw the token at `position` of each `sequence`.

        It is the argmax at temperature 0 (lowest id among equals), else that of the logits plus that position's Gumbel
        noise.
        """
        logits = self.process(logits, seen)
        if self.temperature == 0:
            return argmax(logits)
        key = stream_key(self.seed, sequence, position)
        return walk.draw(logits, key) if walk.serves(logits) else gumbel_max(logits, key)


def gumbel_max(logits: Float[Tensor, "B V"], key: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return tokens drawn from these distributions: the largest logit once each has Gumbel noise of its own. Tokens of
    -inf are never drawn."""
    ids = torch.arange(logits.shape[1], device=key.device)
    at_once = max(1, (ON_DEVICE if logits.is_cuda else CACHED) // len(ids))
    parts = zip(logits.split(at_once), key.split(at_once), strict=True)
    return torch.cat([(some.double() + gumbel(its, ids)).argmax(-1) for some, its in parts])


def gumbel(key: Int[Tensor, "..."], ids: Int[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Return the float64 Gumbel noise of tokens in the draw with this key."""
    # Of small uniforms, which win, every bit counts; of those near 1 some are lost.
    return -(-torch.log1p(-uniforms_at(key, ids + 1))).log()


def invert(probs: Float[Tensor, "... V"], uniforms: Float[Tensor, "... n"]) -> Int[Tensor, "... n"]:
    """Return the tokens at these points of the float64 cumulative distributions, in token order; `probs` need not sum
    to 1."""
    cumulative = probs.cumsum(-1)
    # right=True lands on the first token whose cumulative mass exceeds the point, so probability 0 is never drawn.
    return torch.searchsorted(cumulative, uniforms * cumulative[..., -1:], right=True).clamp(max=probs.shape[-1] - 1)


@lru_cache(maxsize=1024)  # a server's requests have seeds without end
def hashed(seed: int) -> int:
    """Return a well mixed int64 for a seed of any size, which `stream_key` begins with."""
    wrapped = (int(seed) + (1 << 63)) % (1 << 64) - (1 << 63)
    return int(_mix(torch.tensor(wrapped, device="cpu")))


def check_sequence(number: int) -> None:
    """Raise InputError for a number of a random stream that is no whole number of 64 bits."""
    check_whole("sequence", number, least=-(2**63), most=2**63 - 1)


def stream_key(seed: int, sequence: Int[Tensor, " B"], position: Int[Tensor, " B"], draw: int = 0) -> Int[Tensor, " B"]:
    """Return 64 random bits for draw number `draw` at this position of this sequence, from a counter hash: SplitMix64's
    finaliser once per coordinate.

    Draw 0 is the target's own choice, positive ones decide on sampled candidates, -1 is the draft's.
    """
    return mix_in(mix_in(stream_of(seed, sequence), position), torch.full_like(position, draw))


def stream_of(seed: int, sequence: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return the key of each sequence's random stream."""
    return mix_in(torch.full_like(sequence, hashed(seed)), sequence)


def noise_at(root: Int[Tensor, " B"], temperature: float, seed: int, sequence: Int[Tensor, " B"]) -> Noise:
    """Return the noise of the draws behind roots at these positions of these sequences."""
    of_rows = torch.full(root.shape, temperature, dtype=torch.float32, device=root.device)
    return Noise(of_rows, stream_of(seed, sequence), root)


def uniform(seed: int, sequence: Int[Tensor, " B"], position: Int[Tensor, " B"], draw: int = 0) -> Float[Tensor, " B"]:
    """Return float64 uniforms in [0, 1); arguments as in `stream_key`."""
    return _unit(stream_key(seed, sequence, position, draw))


def uniforms(key: Int[Tensor, "..."], count: int) -> Float[Tensor, "... n"]:
    """Return `count` float64 uniforms in (0, 1) for each key."""
    return uniforms_at(key, torch.arange(1, count + 1, device=key.device))


def uniforms_at(key: Int[Tensor, "..."], number: Int[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Return the float64 uniforms in (0, 1) of each key that have these numbers."""
    found = _unit(_mix(key[..., None] + number * -0x61C8864680B583EB)) + 2.0**-54
    return found.clamp(max=1 - 2.0**-53)  # the largest would be rounded to 1


def mix_in(key: Int[Tensor, "..."], value: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return a key that depends on `value` too."""
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
