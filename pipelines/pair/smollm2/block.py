"""Training of a block drafter for smollm2: what it begins as, and the loss that it learns by."""

from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.caches.padded import KVCache
from c2t.models.drafts.block import BlockHead
from c2t.models.drafts.eagle3 import default_taps
from pipelines.pair.smollm2.epochs import train_epochs
from pipelines.pair.smollm2.losses import DEEPER
from pipelines.pair.smollm2.shards import Rows

SIZE, LAYERS, WIDTH = 6, 2, 768  # positions of a block; layers; width of their MLPs
MASK = 0  # smollm2's <|endoftext|>, which its texts do not hold
EPOCHS = 1
ANCHORS = 16  # blocks of each text in a batch, from random positions of the answer


def new_block(target: LlamaForCausalLM) -> BlockHead:
    """Return a drafter that reads three states of the target."""
    torch.manual_seed(0)
    changed = {"num_hidden_layers": LAYERS, "intermediate_size": WIDTH}
    config = LlamaConfig(**target.config.to_dict() | changed)
    read = tuple(tap - 1 for tap in default_taps(target.config.num_hidden_layers))
    head = BlockHead(config, SIZE, MASK, read)
    head.embed_tokens = target.get_input_embeddings()
    return head


def block_states(head: BlockHead, rows: Rows, roots: Int[Tensor, "B A"]) -> Float[Tensor, "B A K H"]:
    """Return the states of blocks whose roots stand at these positions of the texts; each sees the states of the text
    before its root."""
    (texts, anchors), cache = roots.shape, KVCache(head.num_layers)
    positions = torch.arange(rows.inputs.shape[1], device=roots.device)
    head.remember(rows.inputs, positions.expand(texts, -1), cache)
    steps = torch.arange(head.size, device=roots.device)
    tokens = head.block(rows.ids.gather(1, roots).flatten()).view(texts, -1)
    hidden = head(tokens, (roots[..., None] + steps).flatten(1), seen(roots, len(positions), head.size), cache)
    return hidden.unflatten(1, (anchors, head.size))


def seen(roots: Int[Tensor, "B A"], length: int, size: int) -> Bool[Tensor, "B n t"]:
    """Return what each token of the blocks sees: the text before its root, and its own block."""
    number = torch.arange(roots.shape[1], device=roots.device).repeat_interleave(size)
    text = torch.arange(length, device=roots.device) < roots[:, number, None]
    block = (number[:, None] == number).expand(len(roots), -1, -1)
    return torch.cat([text, block], 2)


def block_losses(head: BlockHead, lm_head: Float[Tensor, "v H"], rows: Rows) -> dict[str, Tensor]:
    """Return the soft cross-entropy between the drafter's distributions and the target's at all depths of random
    blocks, a deeper one counting less, and the agreement of each depth."""
    roots = torch.multinomial(rows.judged.float(), ANCHORS, replacement=True) + 1  # slot j stands at position j + 1
    hidden = block_states(head, rows, roots)[:, :, 1:]
    state = roots[..., None] + torch.arange(head.size - 1, device=roots.device)  # whose distribution each token follows
    judged = F.pad(rows.judged, (1, head.size)).gather(1, state.flatten(1)).view_as(state)
    depth = torch.arange(head.size - 1, device=roots.device).expand_as(state)[judged]
    true = F.pad(rows.features, (0, 0, 0, head.size))[torch.arange(len(roots))[:, None, None], state][judged]
    with torch.no_grad():
        wanted = (true @ lm_head.T).float()
    logits = (hidden[judged] @ lm_head.T).float()
    loss = F.cross_entropy(logits, wanted.softmax(-1), reduction="none")
    same = (logits.argmax(-1) == wanted.argmax(-1)).float()
    weight = DEEPER**depth
    agreement = {f"agreement_{k}": same[depth == k].mean() for k in range(head.size - 1)}
    return {"cross_entropy": (loss * weight).sum() / weight.sum(), **agreement}


def train_block(head: BlockHead, lm_head: Float[Tensor, "v H"], source: Path, folder: Path) -> BlockHead:
    """Return the drafter after EPOCHS of the texts that are there now; resumes from the folder's checkpoint."""
    embedding = head.embed_tokens
    head.embed_tokens = None  # not part of the checkpoints

    def losses(rows: Rows) -> dict[str, Tensor]:
        head.embed_tokens = embedding
        figures = block_losses(head, lm_head, rows)
        head.embed_tokens = None
        return figures

    train_epochs(EPOCHS, head, losses, source, folder, lm_head.device, inputs="taps")
    head.embed_tokens = embedding
    return head.eval()
