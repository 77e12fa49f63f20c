"""Chains cut where one more token is expected to cost more time than it saves, as engines cut DSpark's.

    n = argmax (1 + S_1 + ... + S_n) / (1 + slope n),   S_k = p_1 ... p_k

p_k estimates whether the target accepts token k after the k - 1 before it. At one prompt this is the rule of vLLM's and
SGLang's schedulers, and CaDDTree's on a chain (`c2t.policies.caddtree`).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from c2t.errors import InputError, at_least_one
from c2t.policies.caddtree import profitable
from c2t.policies.limits import Size, check_size
from c2t.protocols import Draft, NextTokenDistributions, Root
from c2t.storage.checked import check_fields
from c2t.tree import Tree


@dataclass(frozen=True)
class ConfidenceChain:
    """A chain of the most probable tokens, cut at the length that is expected to be the fastest.

    (By the draft's own probability of a token, this chain is `caddtree:K=1`.)

    by: the number x of a position that says most of acceptance. "confidence": the logit of the draft's confidence head
    (DSpark). "margin": the largest logit less the second, which vLLM takes for other heads. The estimate is
    sigmoid(weight x + bias), with the position's weight and bias, or the last ones: a calibration on other texts.
    slope: time of one more token over that of a round with the root alone.
    """

    by: Literal["confidence", "margin"] = "confidence"
    slope: float = 0.05
    length: int = 7
    weights: tuple[float, ...] = (1.0,)
    biases: tuple[float, ...] = (0.0,)

    proposal = "ranked"
    exact = True
    bench = ()
    sweep = ()
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "length")
        check_size(self)
        if not 0 < self.slope < math.inf or not self.weights or not self.biases:
            raise InputError(f"ConfidenceChain: slope = {self.slope} must be above 0, with a weight and a bias or more")
        if not all(map(math.isfinite, self.weights + self.biases)):
            raise InputError("ConfidenceChain: weights and biases must be finite numbers")

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most."""
        return self.length

    @property
    def size(self) -> Size:
        """See `Size`."""
        return Size(1 + self.length, 1)

    draft_length = levels  # alpha is tau as a share of it

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree, survival = Tree.root(root.token), [torch.ones_like(root.token, dtype=torch.float64)]
        for position in range(self.length):
            last = torch.full_like(root.token, position)[:, None]
            rows = draft.expand(tree, last)
            token, log_prob, entropy = rows.topk_entropy(2, 0)
            tree = tree.extend(tree.children(last, token[..., :1], log_prob[..., :1], entropy))
            survival.append(survival[-1] * self._acceptance(rows, log_prob[:, 0], position).double())
        return replace(tree, alive=profitable(torch.stack(survival, 1), self.slope)).packed()

    def _acceptance(
        self, rows: NextTokenDistributions, log_prob: Float[Tensor, "B k"], position: int
    ) -> Float[Tensor, " B"]:
        """Return the estimate for the most probable token after a chain of `position` tokens, 0 where the draft says
        nothing: there its confidence is 0, and all tokens are equal."""
        if self.by == "margin":
            x = (log_prob[:, 0] - log_prob[:, 1]).nan_to_num()  # with one token only it is infinite
            says = log_prob[:, 0] > -math.log(rows.size) * (1 - torch.finfo(x.dtype).eps)
        elif rows.confidence is None:
            raise InputError("the draft has no confidence head, as DSpark's have: take by=margin, or caddtree:K=1")
        else:
            x = torch.logit(rows.confidence[:, 0], eps=torch.finfo(rows.confidence.dtype).eps)
            says = rows.confidence[:, 0] > 0
        weight, bias = (numbers[min(position, len(numbers) - 1)] for numbers in (self.weights, self.biases))
        return torch.sigmoid(weight * x + bias) * says
