"""The target's own texts, with the states that heads learn from."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.models.target.target import Target
from c2t.verification.target_verifier import pad


class Texts(NamedTuple):
    """Texts one after the other: ids of all, each text's length and the length of its question; states of all
    positions, zero at a text's last one.

    best: the target's most probable token at every generated position, whichever was sampled. features: states after
    the final norm. taps: the inputs of the tapped layers; the features of a target without.
    """

    ids: Int[Tensor, " n"]
    lengths: Int[Tensor, " B"]
    questions: Int[Tensor, " B"]
    best: Int[Tensor, " g"]
    features: Float[Tensor, "n H"]
    taps: Float[Tensor, "n D"]


def sample(logits: Float[Tensor, "B V"], temperature: float) -> Int[Tensor, " B"]:
    """Return a token for each row; at temperature 0 the most probable one."""
    if temperature == 0:
        return logits.argmax(-1)
    # The inverse of the distribution function: `multinomial` takes a random number for each token of the vocabulary.
    below = (logits.float() / temperature).softmax(-1).cumsum(-1)
    token = torch.searchsorted(below, torch.rand(len(below), 1, device=below.device) * below[:, -1:], right=True)
    return token[:, 0].clamp(max=below.shape[1] - 1)


@torch.inference_mode()
def write(
    target: Target,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    longest: int,
    few: int,
    ends: frozenset[int],
    deadline: float = float("inf"),
) -> Texts:
    """Let the target continue each of `prompts` until it generates one of `ends`, `longest` tokens are generated, at
    most `few` of the texts are unfinished, or `time.monotonic` reaches the deadline."""
    session = target.session()
    tokens, lengths = pad(prompts, target.device)
    read = session.read(tokens, lengths)
    features, tapped = ([[row[:n].cpu()] for row, n in zip(states, lengths.tolist(), strict=True)] for states in read)
    texts, best = [list(ids) for ids in prompts], [[] for _ in prompts]
    last = read[0][torch.arange(len(prompts), device=target.device), lengths - 1]
    rows, final = list(range(len(prompts))), torch.tensor(sorted(ends), device=target.device)  # rows: unfinished texts
    for step in range(longest):
        logits = target.logits(last[:, None])[:, 0]
        new = sample(logits, temperature)
        for row, token, top in zip(rows, new.tolist(), logits.argmax(-1).tolist(), strict=True):
            texts[row].append(token)
            best[row].append(top)
        unfinished = torch.isin(new, final, invert=True)
        if step == longest - 1 or unfinished.sum() <= few or time.monotonic() >= deadline:
            break
        if not unfinished.all():
            remaining = unfinished.nonzero()[:, 0]
            rows, new = [rows[number] for number in remaining.tolist()], new[remaining]
            session.select(remaining)
        last, taps = (states[:, 0] for states in session.read(new[:, None], torch.ones_like(new)))
        for states, part in ((features, last.cpu()), (tapped, taps.cpu())):
            for row, state in zip(rows, part, strict=True):
                states[row].append(state[None])
    return Texts(
        torch.tensor([token for ids in texts for token in ids]),
        torch.tensor([len(ids) for ids in texts]),
        torch.tensor([len(ids) for ids in prompts]),
        torch.tensor([token for tops in best for token in tops]),
        joined(features),
        joined(tapped),
    )


def joined(texts: list[list[Tensor]]) -> Float[Tensor, "n D"]:
    """Return the states of all texts one after the other, with a row of zeros after each."""
    return torch.cat([torch.cat([*parts, parts[0].new_zeros(1, parts[0].shape[1])]) for parts in texts])
