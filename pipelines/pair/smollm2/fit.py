"""Conditioning of the Medusa-style head on the path: the learned fit, and the counts of pairs that it has to beat."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from c2t.drafting.learner import ROWS, WARMUP, compute
from c2t.drafting.library import Text
from c2t.drafting.losses import eagle_states, some_of
from c2t.drafting.rows import Rows, epoch, rows_of
from c2t.models.drafts.medusa import MedusaHead
from c2t.models.wrappers.path_correction import PathCorrection, log_rest
from c2t.models.wrappers.reweighted import CANDIDATES
from c2t.models.wrappers.reweighted import Path as PathEnd

WIDTH, RANK = 256, 64
EPOCHS = 2
LEARNING_RATE, WEIGHT_DECAY = 2e-3, 1e-2


class Guess(NamedTuple):
    """Candidates after m true paths. wanted: the true token's number among them; C: it is not there."""

    path: PathEnd
    tokens: Int[Tensor, "m C"]
    log_probs: Float[Tensor, "m C"]
    wanted: Int[Tensor, " m"]


def new_fit(head: MedusaHead, embedding: nn.Embedding, tokens: Int[Tensor, " v"]) -> PathCorrection:
    """Return a fit for this head that begins with related vectors for related tokens."""
    torch.manual_seed(0)
    fit = PathCorrection(embedding, tokens, len(head.heads) + 1, WIDTH, RANK)
    rows = embedding.weight.detach() / embedding.weight.std()
    with torch.no_grad():
        for layer in (fit.token, fit.before):
            layer.weight.div_(embedding.weight.std())
        fit.vectors.copy_(0.3 * rows[tokens] @ torch.randn(rows.shape[1], RANK) / rows.shape[1] ** 0.5)
        fit.out.weight.mul_(0.1)
    return fit


@torch.no_grad()
def guesses(head: MedusaHead, rows: Rows, lm_head: Float[Tensor, "v H"], tokens: Int[Tensor, " v"]) -> Guess:
    """Return the head's candidates on a random share of the judged positions, each after the true path, at every depth
    except the first, whose path is the root alone."""
    first = next(eagle_states(head, rows))
    row, slot = rows.judged.nonzero(as_tuple=True)  # the root stands at slot + 1
    last = torch.zeros(len(rows.ids), dtype=torch.long, device=slot.device).scatter_reduce(0, row, slot, "amax")
    parts: list[tuple[Tensor, ...]] = []
    for depth in range(1, len(head.heads) + 1):
        chosen = some_of(len(slot), slot.device)
        chosen = chosen[slot[chosen] + depth <= last[row[chosen]]]
        hidden = head.at(first[chosen], depth)
        log_probs, index = (head.readable(hidden) @ lm_head.T).float().log_softmax(-1).topk(CANDIDATES, -1)
        before, token, true = (rows.ids[row[chosen], slot[chosen] + depth + ahead] for ahead in (0, 1, 2))
        hit = tokens[index] == true[:, None]
        wanted = torch.where(hit.any(1), hit.int().argmax(1), CANDIDATES)
        parts.append((token, before, torch.full_like(token, depth), hidden.float(), tokens[index], log_probs, wanted))
    token, before, at, hidden, candidates, log_probs, wanted = (torch.cat(part) for part in zip(*parts, strict=True))
    return Guess(PathEnd(token, before, at, hidden), candidates, log_probs, wanted)


def cross_entropy(fit: PathCorrection, guess: Guess) -> Float[Tensor, ""]:
    """Return the cross-entropy of the true tokens; all other tokens count as one."""
    scores, factor = fit(guess.path, guess.tokens, guess.log_probs)
    return F.cross_entropy(torch.cat([scores, log_rest(guess.log_probs) + factor], -1), guess.wanted)


def train_fit(
    head: MedusaHead, embedding: nn.Embedding, tokens: Int[Tensor, " v"], lm_head: Tensor, texts: list[Text]
) -> PathCorrection:
    """Return a fit for a head, learned in EPOCHS from the answers of these texts at a rate that falls over the second
    half."""
    fit = new_fit(head, embedding, tokens).to(lm_head.device)
    optimiser = torch.optim.AdamW(fit.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    batches = [batch for number in range(EPOCHS) for batch in epoch(texts, ROWS, number)]
    for step, batch in enumerate(batches):
        torch.manual_seed(step)
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP, 2 * (1 - step / len(batches)))
        with compute(lm_head.device):
            loss = cross_entropy(fit, guesses(head, rows_of(batch).to(lm_head.device), lm_head, tokens))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return fit.eval()
