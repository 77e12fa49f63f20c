"""The sequential heads on a block drafter: a bias of the path, and a guess at what will be accepted (DSpark).

    e = W1 p;  logits_k = base_k + W2 e;  confidence_k = sigmoid(w concat(h_k, e) + b)

h_k, base_k: state and logits of slot k, which all paths share. p: the token before the one that slot k speaks of; for
the first one that is the root. So a path changes the distributions, and no forward of the backbone is needed for it.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

KINDS = ("vanilla", "gated", "rnn")


@runtime_checkable
class SequentialHead(Protocol):
    """Head whose bias depends on the path. state_size: of what it knows of a path, 0 for the last token only.
    first_depth: the first depth that has a bias. out: the layer that makes the bias of a step's output."""

    state_size: int
    first_depth: int

    @property
    def out(self) -> nn.Linear: ...

    def embedded(self, previous: Int[Tensor, "*S"]) -> Float[Tensor, "*S e"]:
        """Return what the head reads of the tokens before."""
        ...

    def step(
        self, embedded: Float[Tensor, "*S e"], hidden: Float[Tensor, "*S H"], state: Float[Tensor, "*S z"]
    ) -> tuple[Float[Tensor, "*S r"], Float[Tensor, "*S z"]]:
        """Return what `out` reads at slots with these states of the backbone, and the states of the paths to them.
        state: those of the paths to their parents, zeros at the root."""
        ...


class MarkovHead(nn.Module):
    """Bias of the token before, with DSpark's parameter names.

    vocab: the target's tokens, one of which comes before; draft_vocab: those that are drafted. kind: "vanilla";
    "gated", where the slot's state chooses how much of e is read; "rnn", with a state for each path.
    """

    first_depth = 0

    def __init__(self, vocab: int, draft_vocab: int, rank: int, hidden: int, kind: str = "vanilla"):
        super().__init__()
        self.kind, self.state_size = kind, rank * (kind == "rnn")
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        if kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)

    @property
    def out(self) -> nn.Linear:
        return self.markov_w2

    def embedded(self, previous: Int[Tensor, "*S"]) -> Float[Tensor, "*S r"]:
        """See `SequentialHead.embedded`."""
        return self.markov_w1(previous)

    def step(
        self, embedded: Float[Tensor, "*S r"], hidden: Float[Tensor, "*S H"], state: Float[Tensor, "*S z"]
    ) -> tuple[Float[Tensor, "*S r"], Float[Tensor, "*S z"]]:
        """See `SequentialHead.step`."""
        hidden = hidden.to(embedded)
        if self.kind == "vanilla":
            return embedded, state
        if self.kind == "gated":
            return self.gate_proj(torch.cat([hidden, embedded], -1)).sigmoid() * embedded, state
        gate, new, out = self.joint_proj(torch.cat([state, embedded, hidden], -1)).chunk(3, -1)
        return out.tanh(), torch.lerp(new.tanh(), state, gate.sigmoid())


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
