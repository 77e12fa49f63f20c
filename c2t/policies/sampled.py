"""Sampling of children from the draft, for every policy with sampled candidates."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from c2t.errors import InputError
from c2t.protocols import Draft, Root
from c2t.sampling import LEAST, gumbel, invert, mix_in, uniforms
from c2t.tree import Nodes, Tree

NEVER = -600.0  # tokens below e^-600 are never sampled: renormalised in float64 they would be 0 / 0


def sample_children(
    tree: Tree,
    draft: Draft,
    root: Root,
    frontier: Int[Tensor, "B F"],
    k: int,
    temperature: float,
    independent: bool = False,
) -> tuple[Tree, Nodes]:
    """Sample k children of each frontier slot (-1: none) from the draft at `temperature`, without replacement or
    independently; `rank` is their order. Return also the tree with the distributions stored in it.

    Tokens that independent sampling repeats are not alive. Tokens of probability 0 count as not sampled, as do all of
    an absent slot. Raises InputError where k samples without replacement exceed the vocabulary.
    """
    rows = draft.expand(tree, frontier)
    log_probs = (rows.logits / temperature).log_softmax(-1)
    log_probs = log_probs.masked_fill(log_probs < NEVER, float("-inf"))
    key = path_key(tree, frontier, root.key)
    if independent:
        token = invert(log_probs.double().exp(), uniforms(key, k))
    else:
        # Gumbel's trick: the order of perturbed log-probabilities is that of successive samples without replacement.
        vocabulary = log_probs.shape[-1]
        if k > vocabulary:
            raise InputError(f"{k} samples without replacement from the draft's {vocabulary} tokens; sample fewer")
        ids = torch.arange(vocabulary, device=key.device)
        token = (log_probs.double() + gumbel(key, ids)).topk(k, dim=-1).indices
    log_prob = log_probs.gather(-1, token)
    children = tree.children(frontier, token, log_prob, rows.entropy(0))
    repeated = (token[..., :, None] == token[..., None, :]).tril(-1).any(-1).flatten(1)
    children = replace(children, alive=children.alive & ~repeated)
    absent = (frontier < 0)[..., None] | (log_prob == float("-inf"))
    return tree.with_proposals(frontier, log_probs, independent), mark_unsampled(children, absent.flatten(1))


def mark_unsampled(nodes: Nodes, stop: Bool[Tensor, "B n"]) -> Nodes:
    """Return the nodes, those at `stop` as if never sampled. Whether to stop may depend on earlier samples, never on
    the token itself: a policy that drops a token after seeing it changes the text's law."""
    return replace(nodes, alive=nodes.alive & ~stop, rank=torch.where(stop, -1, nodes.rank))


def path_key(tree: Tree, slots: Int[Tensor, "B F"], key: Int[Tensor, " B"]) -> Int[Tensor, "B F"]:
    """Return random bits that depend on the round and on the tokens on the path to each slot, not on where it is
    stored."""
    keys = key[:, None].expand(slots.shape)
    slot = slots.clamp(min=0)
    while (slot > 0).any():
        keys = torch.where(slot > 0, mix_in(keys, tree.token.gather(1, slot)), keys)
        slot = tree.parent.gather(1, slot).clamp(min=0)
    return keys


def check_temperature(policy) -> None:
    """Raise InputError unless the draft's temperature is positive."""
    if not LEAST <= policy.temperature <= 1 / LEAST:
        name = type(policy).__name__
        raise InputError(f"{name}: draft temperature = {policy.temperature} must be from {LEAST:g} to {1 / LEAST:g}")
