"""What a policy may see: a draft that expands slots of a tree, and the root that the tree hangs from. Never a model."""

from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.errors import InputError
from c2t.tree import Tree


class Root(NamedTuple):
    """The last committed token, and 64 random bits for policies that sample (see `c2t.sampling.stream_key`)."""

    token: Int[Tensor, " B"]
    key: Int[Tensor, " B"]


class Rows:
    """The draft's next-token distributions after F expanded slots of each of B trees; everything in nats.

    Half-precision logits are read as float32: sums of half-precision log-probabilities tie and cross all the time.
    """

    def __init__(self, logits: Float[Tensor, "B F V"]):
        self.logits = logits if logits.dtype == torch.float64 else logits.float()

    @cached_property
    def log_norm(self) -> Float[Tensor, "B F 1"]:
        return self.logits.logsumexp(-1, keepdim=True)

    @property
    def log_probs(self) -> Float[Tensor, "B F V"]:
        return self.logits - self.log_norm

    def top(self, k: int) -> tuple[Int[Tensor, "B F K"], Float[Tensor, "B F K"]]:
        """The k most probable tokens and their log-probabilities, most probable first.

        Raises InputError where the vocabulary has fewer than k tokens.
        """
        vocabulary = self.logits.shape[-1]
        if k > vocabulary:
            raise InputError(f"K = {k} is more than the draft's vocabulary of {vocabulary} tokens; choose a smaller K")
        value, token = self.logits.topk(k, dim=-1)
        return token, value - self.log_norm

    def entropy(self, m: int | None) -> Float[Tensor, "B F"]:
        """Entropy over the m most probable tokens, not renormalised (C2T, equation 3); None: the whole vocabulary;
        0: not computed (NaN), for policies that do not use it."""
        logits = self.logits
        if m == 0:
            return torch.full_like(logits[..., 0], float("nan"))
        if m is not None and m < logits.shape[-1]:
            logits = logits.topk(m, dim=-1, sorted=False).values
        # entr, not -p log p: that is NaN as soon as a probability is 0.
        return torch.special.entr((logits - self.log_norm).exp()).sum(-1)


@runtime_checkable
class Draft(Protocol):
    """One generation's draft state: keys and values of the committed prefix, and of the slots expanded this round."""

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> Rows:
        """Next-token distributions after these slots; -1 fills up rows that have fewer. The first call of a round
        expands the root alone (its forward was made when the prefix was observed); later ones take any slots whose
        parents were expanded before, and cost one draft forward each."""
        ...
