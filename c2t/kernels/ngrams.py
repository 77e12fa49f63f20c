"""A draft's distributions, mixed with counts of what followed the same tokens earlier in the text: `mix` in torch, and
the same in C on a CPU (ngrams.c)."""

import ctypes
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.compiled import changeable
from c2t.kernels.native import HEADER, kernels, structs
from c2t.kernels.pointer import pointer

BEFORE = -1  # stands for the tokens before the text
LONGEST = HEADER.numbers["MOST_KINDS"]  # tokens of a context
# Tokens back that a distance is counted to: beyond it, weights were learned from few texts.
FARTHEST = HEADER.numbers["FARTHEST"]
NOTHING = -2  # stands for a token: unlike any, and unlike the beginning of the text


class Paths(NamedTuple):
    """Paths to the slots of B trees: the committed text with the root, text[r, :lengths[r]], then the tree under it
    (columns `token` and `parent`, the root in slot 0)."""

    text: Int[Tensor, "B L"]
    lengths: Int[Tensor, " B"]
    token: Int[Tensor, "B n"]
    parent: Int[Tensor, "B n"]


class Trust(NamedTuple):
    """How far a token that followed is trusted. The logit of such a token x rises by

        factor * log(1 + c(x) / p(x)) + distance * log b(x) + bias

    p: its probability by the draft; c: what the counts alone would give it, over what they leave to the draft; b: how
    many tokens before the root the last context that it followed ended, at most FARTHEST. Without learning it is the
    first term alone.
    """

    factor: float = 1.0
    distance: float = 0.0
    bias: float = 0.0


class Prior(NamedTuple):
    """How much a draft is trusted against counts: it weighs as much as weights[i] occurrences in the text for contexts
    of shortest + i tokens, the longest of `longest`; and what becomes of the counts then."""

    shortest: int
    weights: tuple[float, ...]
    trust: Trust = Trust()

    @property
    def longest(self) -> int:
        """Return the tokens of the longest context."""
        return self.shortest + len(self.weights) - 1

    @property
    def in_c(self) -> ctypes.Structure:
        """Return the same for functions in C."""
        weights = (ctypes.c_double * LONGEST)(*self.weights)
        return structs.prior(weights, self.shortest, len(self.weights), *self.trust)


def serves(logits: Float[Tensor, "*S v"]) -> bool:
    """Return True if `raise_followers` can change these logits: in float32 on a CPU with a compiler."""
    return changeable(logits) and kernels() is not None


def raise_followers(
    paths: Paths,
    row: Int[Tensor, " S"],
    slot: Int[Tensor, " S"],
    logits: Float[Tensor, "*S w"],
    ids: Int[Tensor, " v"] | None,
    oov_ids: Int[Tensor, "B E"] | None,
    prior: Prior,
) -> None:
    """Do `mix` in C for slot[s] of tree row[s]: change the logits of tokens that followed, in place, so that their
    softmax is the mixture.

    ids: the tokens that the logits are of, in rising order; None for all. oov_ids: those of each text, after them."""
    columns = [part.contiguous() for part in (*paths[1:], row, slot)]
    text, (lengths, token, parent, rows, slots) = paths.text, (pointer(column, torch.int64) for column in columns)
    of_texts, more = (None, 0) if oov_ids is None else (pointer(oov_ids, torch.int64), oov_ids.shape[1])
    failed = kernels().raise_followers(
        *(pointer(text, torch.int64, rows=True), text.stride(0), text.shape[1], lengths),
        *(token, parent, paths.token.shape[1], rows, slots, len(slot)),
        *(pointer(logits, torch.float32), logits.shape[-1] - more),
        *(None if ids is None else pointer(ids, torch.int64), of_texts, more),
        prior.in_c,
    )
    if failed:
        raise MemoryError(f"no memory to count what follows in a text of {text.shape[1]} tokens")


def mix(
    paths: Paths, slots: Int[Tensor, "B F"], log_probs: Float[Tensor, "B F V"], prior: Prior
) -> Float[Tensor, "B F V"]:
    """Return new log scores of the tokens after these slots (-1: any).

    If the last n tokens of a slot's path occur N times earlier in the text, c of them before the token x, the
    probability p of x becomes (c + d p) / (N + d), where d is the prior's weight of n. This is applied for its shortest
    n, then to that result for n one larger, up to its longest, and not normalised. By how much a logit rises so is the
    first term of `Trust`, which may add others. A token of probability 0 keeps it.
    """
    fits = contexts(paths, slots, prior.shortest, len(prior.weights))
    weights = torch.tensor(prior.weights, dtype=log_probs.dtype, device=log_probs.device)
    weight, left = shares(fits.sum(3).to(log_probs), weights)
    following = paths.text.roll(-1, 1)[:, None].expand(-1, slots.shape[1], -1)  # the token after each place

    def of_token(values: Float[Tensor, "B F L"], how: str) -> Float[Tensor, "B F L"]:
        """Join the values of all places that the same token follows."""
        return (
            torch.full_like(log_probs, -1)
            .scatter_reduce(2, following, values, how, include_self=False)
            .gather(2, following)
        )

    share = of_token((fits * weight[..., None]).sum(2), "sum")
    ends = torch.arange(fits.shape[3], device=slots.device).where(fits[:, :, 0], -1)
    last, log_prob = of_token(ends.to(log_probs), "amax"), log_probs.gather(2, following)
    back = ((paths.lengths - 1)[:, None, None] - last).clamp(1, FARTHEST)
    raised = torch.logaddexp(torch.zeros_like(log_prob), share.log() - left - log_prob)
    rise = prior.trust.factor * raised + prior.trust.distance * back.log() + prior.trust.bias
    risen = torch.where((last >= 0) & (log_prob > float("-inf")), log_prob + rise, log_prob)
    return log_probs.scatter(2, following, risen)


def contexts(paths: Paths, slots: Int[Tensor, "B F"], shortest: int, kinds: int) -> Bool[Tensor, "B F N L"]:
    """Return whether the last n tokens of each slot's path end at each place of the text before the root, for so many n
    from the shortest on."""
    text, longest = paths.text, shortest + kinds - 1
    position = torch.arange(text.shape[1], device=text.device)
    preceding = torch.stack([text.roll(back, 1).masked_fill(position < back, NOTHING) for back in range(longest)], 1)
    preceding = preceding.masked_fill((position >= (paths.lengths - 1)[:, None])[:, None], NOTHING)
    same = preceding[:, None] == _context(paths, slots, longest)[..., None]
    return same.cumprod(2, dtype=torch.uint8).bool()[:, :, shortest - 1 :]


def shares(
    occurrences: Float[Tensor, "*S N"], weights: Float[Tensor, " N"]
) -> tuple[Float[Tensor, "*S N"], Float[Tensor, "*S 1"]]:
    """Return the probability that each place of a context gives to the token after it, if contexts of N lengths were at
    so many places, and the log of the factor that is left to the draft's."""
    weight = 1 / (occurrences + weights)
    # A longer context's counts leave that much of what the shorter ones said; as logarithms, since float32 has no room
    # for a product of eight small numbers.
    left = (weight * weights).log().flip(-1).cumsum(-1).flip(-1)
    return weight * torch.nn.functional.pad(left[..., 1:], (0, 1)).exp(), left[..., :1]


def _context(paths: Paths, slots: Int[Tensor, "B F"], longest: int) -> Int[Tensor, "B F N"]:
    """Return the last `longest` tokens up to each slot, its own first; BEFORE before the beginning of the text.

    A beginning mark, the text and the tree stand in one row of tokens, with each one's predecessor.
    """
    size = paths.text.shape[1] + 1
    token = torch.cat([torch.full_like(paths.text[:, :1], BEFORE), paths.text, paths.token], 1)
    before = (torch.arange(size, device=token.device) - 1).clamp(min=0).expand(len(token), -1)
    under_root = torch.where(paths.parent < 0, paths.lengths[:, None] - 1, size + paths.parent)
    before, index, path = torch.cat([before, under_root], 1), size + slots.clamp(min=0), []
    for _ in range(longest):
        path.append(index)
        index = before.gather(1, index)
    return token.gather(1, torch.cat(path, 1)).unflatten(1, (longest, -1)).mT
