"""Training of Hydra-style sequential heads behind the Medusa-style head: the rival of the learned fit, with as many
numbers, on the same positions, for as many epochs."""

from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from c2t.models.hydra import HydraHead
from c2t.models.medusa import MedusaHead
from pipelines.pair.smollm2.epochs import train_epochs
from pipelines.pair.smollm2.fit import EPOCHS
from pipelines.pair.smollm2.losses import eagle_states, some_of
from pipelines.pair.smollm2.shards import Rows

WIDTH = 432  # 1.0 M numbers, as the fit has


def new_hydra(head: MedusaHead, embedding: nn.Embedding) -> HydraHead:
    """Return sequential heads that begin as no correction and read embeddings as large as states."""
    torch.manual_seed(0)
    hydra = HydraHead(embedding, len(head.heads) + 1, WIDTH)
    with torch.no_grad():
        hydra.token.weight.div_(embedding.weight.std())
    return hydra


def cross_entropy(
    hydra: HydraHead, head: MedusaHead, rows: Rows, lm_head: Float[Tensor, "v H"], tokens: Int[Tensor, " v"]
) -> Float[Tensor, ""]:
    """Return the cross-entropy of the true tokens behind true paths, at every depth but the first, on a random share of
    the judged positions. A token that the head does not name has no part in it."""
    with torch.no_grad():
        states = next(eagle_states(head, rows))
    row, slot = rows.judged.nonzero(as_tuple=True)  # the root stands at slot + 1
    last = torch.zeros(len(rows.ids), dtype=torch.long, device=slot.device).scatter_reduce(0, row, slot, "amax")
    chosen = some_of(len(slot), slot.device)
    state = states[chosen]
    losses: list[Tensor] = []
    for depth in range(1, len(head.heads) + 1):
        inside = slot[chosen] + depth <= last[row[chosen]]
        chosen, state = chosen[inside], state[inside]
        with torch.no_grad():
            ahead = head.at(states[chosen], depth)
        token, true = (rows.ids[row[chosen], slot[chosen] + depth + further] for further in (1, 2))
        state = hydra(state, ahead, token, torch.full_like(token, depth))
        place = torch.searchsorted(tokens, true).clamp(max=len(tokens) - 1)
        named = tokens[place] == true
        losses.append(F.cross_entropy((state[named] @ lm_head.T).float(), place[named], reduction="none"))
    return torch.cat(losses).mean()


def train_hydra(
    head: MedusaHead, embedding: nn.Embedding, tokens: Int[Tensor, " v"], lm_head: Tensor, source: Path, folder: Path
) -> HydraHead:
    """Return sequential heads for a head, learned in EPOCHS from the texts that are there now; goes on from the
    folder's checkpoint."""
    hydra = new_hydra(head, embedding).to(lm_head.device)

    def losses(rows: Rows) -> dict[str, Tensor]:
        return {"cross_entropy": cross_entropy(hydra, head, rows, lm_head, tokens)}

    train_epochs(EPOCHS, hydra, losses, source, folder, lm_head.device)
    return hydra.eval()
