"""The sequential heads on a block drafter: a bias of the token before, and a guess at what will be accepted (DSpark).

    e = W1 p;  logits_k = base_k + W2 e;  confidence_k = sigmoid(w concat(h_k, e) + b)

h_k, base_k: state and logits of slot k, which all paths share. p: the token before the one that slot k speaks of; for
the first one that is the root. So a path changes the distributions, and no forward of the backbone is needed for it.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

KINDS = ("vanilla", "gated")


class MarkovHead(nn.Module):
    """Bias of the token before, with DSpark's parameter names.

    vocab: the target's tokens, one of which comes before; draft_vocab: those that are drafted. kind: "vanilla", or
    "gated", where the slot's state chooses how much of e is read.
    """

    def __init__(self, vocab: int, draft_vocab: int, rank: int, hidden: int, kind: str = "vanilla"):
        super().__init__()
        self.kind = kind
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)

    def latent(self, previous: Int[Tensor, "*S"], hidden: Float[Tensor, "*S H"]) -> Float[Tensor, "*S r"]:
        """Return what W2 reads after these tokens, at slots with these states."""
        embedded = self.markov_w1(previous)
        if self.kind == "vanilla":
            return embedded
        return torch.sigmoid(self.gate_proj(torch.cat([hidden.to(embedded), embedded], -1))) * embedded

    def bias(self, previous: Int[Tensor, "*S"], hidden: Float[Tensor, "*S H"]) -> Float[Tensor, "*S v"]:
        """Return what the logits of slots with these states gain after these tokens."""
        return self.markov_w2(self.latent(previous, hidden))


class ConfidenceHead(nn.Module):
    """Guess at the share of a slot's next token that is accepted, sum_v min(p_v, q_v) at temperature 1, as a logit.
    rank: of the embedding that it reads in addition to the slot's state, 0 for none."""

    def __init__(self, hidden: int, rank: int):
        super().__init__()
        self.rank = rank
        self.proj = nn.Linear(hidden + rank, 1)

    def forward(
        self, hidden: Float[Tensor, "*S H"], embedded: Float[Tensor, "*S r"] | None = None
    ) -> Float[Tensor, "*S"]:
        """Return logits, in float32 at least. embedded: W1 of the tokens before; without it only if rank is 0."""
        read = torch.cat([hidden, embedded.to(hidden)], -1) if self.rank else hidden
        exact = torch.promote_types(read.dtype, torch.float32)
        return F.linear(read.to(exact), self.proj.weight.to(exact), self.proj.bias.to(exact))[..., 0]
