"""Interpolation weights of n-grams, learned: those, and the `Trust`, by which a draft, mixed with n-grams of the text
(`c2t.models.wrappers.ngrams`), explains the target's texts best.

Evidence is every position of the target's texts, each after as many tokens as a tree could hold there. Ten or eleven
numbers are fitted, by maximum likelihood. In sampled texts the draft's logits have the Gumbel noise that draft and
target share, as at run time (`c2t.sessions.coupled`).
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.decoding import DraftModel
from c2t.drafting.library import Text
from c2t.kernels.ngrams import FARTHEST, LONGEST, Paths, Prior, Trust, contexts, shares
from c2t.models.loading.load import load_draft
from c2t.models.target.target import Target
from c2t.models.wrappers.ngrams import PRIOR_WEIGHTS, NgramDraft, write_learned
from c2t.protocols import NextTokenDistributions
from c2t.replay.every_position import forks
from c2t.replay.lockstep import Continuation
from c2t.sampling import Sampling, noise_at
from c2t.sessions.coupled import scaled, with_noise
from c2t.sessions.wrapped import scale_of
from c2t.tree import Tree

LEVELS = 5
LEAST_P = 0.01  # least probability of a path that counts
STEPS, RATE = 600, 5e-2
FIRST = 16.0, 1.5  # the weight of the shortest context, and what it is divided by for each further token, to begin with
LEAST_TOKENS = 1000  # that followed at the positions of texts: fewer say too little for ten numbers


class Evidence(NamedTuple):
    """Tokens that followed at e positions of texts, m in all. owner: the position of each. log_prob, coupled: their
    log-probabilities by the draft, without and with the shared noise. times: how often they followed contexts of N
    lengths; back: how many tokens before the root the last of these ended. right: True for the target's token.
    contexts: how many contexts of N lengths there were, by position; target: `coupled` of the target's token."""

    owner: Int[Tensor, " m"]
    log_prob: Float[Tensor, " m"]
    coupled: Float[Tensor, " m"]
    times: Float[Tensor, "m N"]
    back: Int[Tensor, " m"]
    right: Bool[Tensor, " m"]
    contexts: Float[Tensor, "e N"]
    target: Float[Tensor, " e"]


def learn_weights(head: Path, target: Target, texts: Sequence[Text], until: float) -> Prior | None:
    """Learn the weights for a head from greedy texts that it has not learned from, and store them with it, if they
    explain these better than those of all drafts of its kind; return them, else None. until: of `time.monotonic`, where
    no more evidence is collected."""
    mixed = NgramDraft(load_draft(head, target))
    shortest, parts = mixed.mixing.shortest, list[Evidence]()
    for text in texts:
        if time.monotonic() >= until:
            break
        end = len(text.ids) - LEVELS - 1  # the tokens after it judge the last paths
        if text.temperature == 0 and end > text.question:
            tokens, features = text.ids.long().to(target.device), text.inputs.float().to(target.device)
            parts += evidence(mixed.draft, Continuation(tokens, features, text.question, end, end), shortest)
    if sum(len(part.log_prob) for part in parts) < LEAST_TOKENS:
        return None
    whole, usual = joined(parts), mixed.mixing.default
    prior = fitted(whole, shortest)
    least, most = PRIOR_WEIGHTS
    prior = prior._replace(weights=tuple(min(max(weight, least), most) for weight in prior.weights))
    if loss_of(whole, prior) >= loss_of(whole, usual):
        return None
    write_learned(head, prior)
    return prior


def loss_of(evidence: Evidence, prior: Prior) -> float:
    """Return `nats` of a prior."""
    return float(nats(evidence, torch.tensor(prior.weights), torch.tensor(prior.trust)))


@torch.inference_mode()
def evidence(
    drafter: DraftModel, text: Continuation, shortest: int, sampling: Sampling = Sampling(0.0), number: int = 0
) -> Iterator[Evidence]:
    """Yield the evidence of one text, after paths of up to LEVELS - 1 of its tokens."""
    for root, draft in forks(drafter, text):
        tree, slots = Tree.root(text.tokens[root]), torch.zeros_like(root)[:, None]
        noise = noise_at(root, sampling.temperature, sampling.seed, torch.full_like(root, number))
        for depth in range(LEVELS):
            paths = Paths(text.tokens.expand(len(root), -1), root + 1, tree.token, tree.parent)
            rows, right = draft.expand(tree, slots), text.tokens[root + depth + 1][:, None]
            log_probs = rows.log_probs[:, 0]
            again = NextTokenDistributions(rows.drafted.clone(), rows.hidden, rows.vocabulary, rows.rows)
            coupled = with_noise(again, tree, slots, scaled(noise, scale_of(draft))).log_probs[:, 0]
            held = tree.log_joint[:, -1].exp() >= LEAST_P
            yield at_positions(paths, slots, log_probs, coupled, right, held, shortest)
            chance = coupled.gather(1, right)
            tree = tree.extend(tree.children(slots, right[:, None], chance[:, None], torch.zeros_like(chance)))
            slots = torch.full_like(slots, tree.size - 1)


def at_positions(
    paths: Paths,
    slots: Int[Tensor, "B 1"],
    log_probs: Float[Tensor, "B V"],
    coupled: Float[Tensor, "B V"],
    right: Int[Tensor, "B 1"],
    held: Bool[Tensor, " B"],
    shortest: int,
) -> Evidence:
    """Return the evidence after one slot of each tree, of those that are held."""
    text, vocabulary = paths.text, log_probs.shape[1]
    fits = contexts(paths, slots, shortest, LONGEST - shortest + 1)[held, 0].float()
    row, position = fits[:, 0].nonzero().T
    following = text.roll(-1, 1)[held][row, position]
    key, which = (row * vocabulary + following).unique(return_inverse=True)
    owner, token = key // vocabulary, key % vocabulary
    times = torch.zeros(len(key), fits.shape[1]).index_add(0, which, fits[row, :, position])
    last = torch.zeros_like(key).scatter_reduce(0, which, position, "amax")
    log_probs, coupled, right = log_probs[held], coupled[held], right[held]
    everything = Evidence(
        owner,
        log_probs[owner, token],
        coupled[owner, token],
        times,
        (paths.lengths[held] - 1)[owner] - last,
        token == right[owner, 0],
        fits.sum(2),
        coupled.gather(1, right)[:, 0],
    )
    possible = everything.log_prob > float("-inf")
    parts: Any = (*(part[possible] for part in everything[:-2]), *everything[-2:])
    return Evidence._make(parts)


def joined(parts: Sequence[Evidence]) -> Evidence:
    """Return all evidence as one."""
    first = torch.tensor([0, *(len(part.contexts) for part in parts)]).cumsum(0)
    parts = [part._replace(owner=part.owner + begin) for part, begin in zip(parts, first, strict=False)]
    return Evidence(*(torch.cat(column) for column in zip(*parts, strict=True)))


def fitted(evidence: Evidence, shortest: int) -> Prior:
    """Return the prior under which the target's tokens are the most probable."""
    weight, sooner = FIRST
    logs = (torch.tensor(weight) / sooner ** torch.arange(evidence.times.shape[1])).log().requires_grad_()
    trust = torch.tensor(Trust()).requires_grad_()
    optimiser = torch.optim.Adam([logs, trust], lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, STEPS)
    for _ in range(STEPS):
        loss = nats(evidence, logs.exp(), trust)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return Prior(shortest, tuple(map(short, logs.exp().tolist())), Trust(*map(short, trust.tolist())))


def nats(evidence: Evidence, weights: Float[Tensor, " N"], trust: Float[Tensor, " t"]) -> Float[Tensor, ""]:
    """Return minus the mean log-probability of the target's tokens, except those that the draft does not have."""
    rise = rises(evidence, weights, trust)
    more = torch.zeros_like(evidence.target).index_add(
        0, evidence.owner, (evidence.coupled + rise).exp() - evidence.coupled.exp()
    )
    gained = torch.zeros_like(evidence.target).index_add(0, evidence.owner, rise * evidence.right)
    drafted = evidence.target > float("-inf")
    return ((1 + more).log() - evidence.target - gained)[drafted].mean()


def rises(evidence: Evidence, weights: Float[Tensor, " N"], trust: Float[Tensor, " t"]) -> Float[Tensor, " m"]:
    """Return by how much each logit rises; see `Trust`."""
    weight, left = shares(evidence.contexts, weights)
    share = (evidence.times * weight[evidence.owner]).sum(1)
    raised = torch.nn.functional.softplus(share.log() - left[evidence.owner, 0] - evidence.log_prob)
    return torch.stack([raised, evidence.back.clamp(max=FARTHEST).log(), torch.ones_like(raised)], 1) @ trust


def short(number: float) -> float:
    """Return a number in three digits."""
    return float(f"{number:.3g}")
