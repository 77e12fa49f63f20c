"""Which candidates of SGLang's EAGLE-2 tree are verified, decided by a classifier: a function of the lists that
`organize_draft_results` gets.

Candidate number c of a request has the rank c mod topk among its siblings, and the parent `parents[c // topk]`, where
`parents` are the lists of parents in a row (-1: the root). Its score is its joint probability.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from c2t_sglang.network import Network

KNOWN = ("joint_prob", "log_joint", "log_prob", "log_max_prob", "max_prob_logit", "rank", "depth")  # no entropy


class Candidates(NamedTuple):
    """Columns (b, n) of all n candidates of b requests; levels: how many there are at each depth."""

    levels: list[int]
    parent: Tensor
    columns: dict[str, Tensor]


def candidates(score_list: Sequence[Tensor], parents_list: Sequence[Tensor]) -> Candidates:
    """Return the candidates of lists of scores, (b, 1, topk) and then (b, topk, topk) a step, and of parents,
    (b, topk + 1) and then (b, topk) a step."""
    topk = score_list[0].shape[-1]
    levels = [score.shape[1] * topk for score in score_list]
    joint = torch.cat([score.flatten(1) for score in score_list], 1).float()
    log_joint = joint.clamp_min(torch.finfo(torch.float32).tiny).log()
    groups = joint.shape[1] // topk
    parent = torch.cat(list(parents_list), 1)[:, :groups].repeat_interleave(topk, dim=1)
    above = torch.where(parent < 0, 0.0, log_joint.gather(1, parent.clamp_min(0)))
    log_prob = log_joint - above
    siblings = log_prob.view(-1, groups, topk)
    depth = torch.cat([joint.new_full((size,), level) for level, size in enumerate(levels)])
    rank = torch.arange(topk, device=joint.device).repeat(groups)
    columns = {
        "log_joint": log_joint,
        "log_prob": log_prob,
        "max_log_prob": siblings.amax(-1, keepdim=True).expand_as(siblings).flatten(1),
        "rank": rank.expand_as(parent),
        "depth": depth.expand_as(parent),
    }
    return Candidates(levels, parent, columns)


def survival(network: Network, found: Candidates) -> Tensor:
    """Return the estimated probability that each candidate's whole path is accepted (b, n); a child's is never above
    its parent's."""
    estimate = network(found.columns)
    done = estimate[:, :0]
    for level in estimate.split(found.levels, 1):
        parent = found.parent[:, done.shape[1] : done.shape[1] + level.shape[1]]
        above = done.gather(1, parent) if done.shape[1] else torch.ones_like(level)
        done = torch.cat([done, above * level if network.conditional else torch.minimum(above, level)], 1)
    return done


def reranked(network: Network, score_list: Sequence[Tensor], parents_list: Sequence[Tensor]) -> list[Tensor]:
    """Return scores of the same shapes whose largest are the candidates of highest survival, then of highest joint
    probability, then the first. No two are equal, so that an unstable top-k cannot keep a child without its parent."""
    found = candidates(score_list, parents_list)
    order = found.columns["log_joint"].argsort(dim=1, descending=True, stable=True)
    by_survival = survival(network, found).gather(1, order).argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, by_survival)
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    score = -torch.zeros_like(found.columns["log_joint"]).scatter(1, order, place.float())
    return [new.view_as(old) for new, old in zip(score.split(found.levels, 1), score_list, strict=True)]
