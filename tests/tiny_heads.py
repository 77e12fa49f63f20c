"""Heads of random weights for the target of the pair tiny."""

from pathlib import Path

import torch

from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.eagle import Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.mtp import MTPHead
from c2t.models.loading.eagle_checkpoint import save_head
from pipelines.pair.recipes import PAIRS
from tests.toys import randomise

DSPARK = BlockForm(5, 0, (1, 3, 5), from_anchor=True, markov_rank=16, confidence=True, confidence_reads_token=True)
HEADS = {
    "eagle3": lambda config: Eagle3Head(config, 4096),
    "mtp": MTPHead,
    "dspark": lambda config: BlockHead(config, DSPARK),
}


def tiny_head(name: str) -> Head:
    """Return a head of this kind: eagle3, mtp, dspark."""
    head = randomise(HEADS[name](PAIRS["tiny"].head), seed=6, spread=0.1)
    if name == "eagle3":
        with torch.no_grad():
            head.norm.weight.mul_(8)  # that it prefers some tokens to others
        kept = torch.arange(0, head.config.vocab_size, 2)
        head.d2t.copy_(kept - torch.arange(len(kept)))
        head.t2d[kept] = True
    return head


def saved(name: str, folder: Path) -> Path:
    """Write such a head into a folder; return that."""
    save_head(tiny_head(name).to(torch.bfloat16), folder)
    return folder
