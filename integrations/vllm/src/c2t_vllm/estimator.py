"""C2T's chain mode (C2T, section 5.5) as the acceptance estimator of vLLM's adaptive verification.

The score of a drafted token depends on the draft's distributions alone: the most probable token's probability, the
entropy, the product along the chain and the depth. The token that was drawn is not read, so cutting a chain by the
score never selects among the tokens that could have been drawn, and rejection sampling stays exact.
"""

import logging
from typing import ClassVar

import torch
from torch import Tensor

from c2t_vllm.network import Network

logger = logging.getLogger("vllm.c2t")  # vLLM shows what its own children log


def distribution(logits: Tensor, M: int | None) -> tuple[Tensor, Tensor]:
    """Return the largest log-probability (n) of rows of logits (n, V), and their entropy (n) in nats over the M most
    probable tokens (None: all), not renormalised (C2T, equation 3)."""
    logits = logits.float()
    top = logits if M is None else logits.topk(min(M, logits.shape[-1])).values
    log_probs = top - logits.logsumexp(-1, keepdim=True)
    return log_probs.amax(-1), torch.special.entr(log_probs.exp()).sum(-1)


def accepted_given_parent(
    network: Network, max_log_prob: Tensor, entropy: Tensor, depth: Tensor, log_joint: Tensor, survival: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the probabilities (n) that the next tokens of n chains are accepted if those before them are; and the
    chains' new `log_joint` and `survival` (the estimated probability that the whole chain is accepted)."""
    log_joint = log_joint + max_log_prob
    columns = {"log_joint": log_joint, "log_prob": max_log_prob, "max_log_prob": max_log_prob}
    columns |= {"entropy": entropy, "depth": depth, "rank": torch.zeros_like(depth)}
    estimate = network(columns)
    if network.conditional:
        return estimate, log_joint, survival * estimate
    # An estimate for the whole path. vLLM multiplies along the chain, so it gets the quotient.
    whole = torch.minimum(estimate, survival)
    return whole / survival.clamp_min(torch.finfo(torch.float32).tiny), log_joint, whole


class C2TAcceptanceEstimator:
    """Drop-in for `OnlineAcceptanceEstimator` of vLLM 0.32 and 0.33: fixed shapes, torch only, no waiting for
    the device, so that it runs inside the draft's CUDA graph. It is trained beforehand and learns nothing online."""

    network: ClassVar[Network]  # of a subclass, see `with_network`

    def __init__(self, max_num_reqs: int, num_speculative_steps: int, device: torch.device):
        self.num_speculative_steps = num_speculative_steps
        self.network = type(self).network.to(device)
        # State of each request's chain. One row more: rows that only fill up a CUDA graph read and write there.
        self.log_joint = torch.zeros(max_num_reqs + 1, device=device)
        self.survival = torch.ones(max_num_reqs + 1, device=device)
        logger.info(
            "c2t-vllm: C2T estimates acceptance (%s; chains of %d)",
            ", ".join(self.network.features),
            num_speculative_steps,
        )

    def predict(
        self, logits: Tensor, idx_mapping: Tensor, draft_step: Tensor, confidence_probs: Tensor, temperature: Tensor
    ) -> None:
        """Write the probability of acceptance of each drafted token, if those before it are, into `confidence_probs`
        (requests of the batch, draft steps).

        logits (n, V): the draft's, one row a request (draft_step: a scalar), or num_speculative_steps rows in a row for
        each (draft_step: one a row). idx_mapping (n): each row's request, -1 for padding. temperature: not read; the
        classifier was trained on the distributions as they are.
        """
        max_log_prob, entropy = distribution(logits, self.network.M)
        steps = self.num_speculative_steps if draft_step.dim() else 1
        depth = draft_step.long().expand(len(logits)).view(-1, steps)
        max_log_prob, entropy = max_log_prob.view(-1, steps), entropy.view(-1, steps)
        request = idx_mapping[: len(logits)].view(-1, steps)[:, 0].long()
        real = request >= 0
        slot = torch.where(real, request, len(self.survival) - 1)
        first = depth[:, 0] == 0
        log_joint = torch.where(first, 0.0, self.log_joint[slot])
        survival = torch.where(first, 1.0, self.survival[slot])
        rows = confidence_probs[: len(slot)]
        for step in range(steps):
            estimate, log_joint, survival = accepted_given_parent(
                self.network, max_log_prob[:, step], entropy[:, step], depth[:, step], log_joint, survival
            )
            place = depth[:, step, None]
            rows.scatter_(1, place, torch.where(real[:, None], estimate[:, None], rows.gather(1, place)))
        self.log_joint[slot], self.survival[slot] = log_joint, survival

    def step(self, idx_mapping: Tensor, num_sampled: Tensor, num_rejected: Tensor) -> None:
        """Do nothing: what vLLM's estimator learns from here, the classifier has learned from a harvest."""


def with_network(network: Network) -> type[C2TAcceptanceEstimator]:
    """Return the class that vLLM makes its estimator of, with this network."""
    return type("C2TAcceptanceEstimator", (C2TAcceptanceEstimator,), {"network": network})
