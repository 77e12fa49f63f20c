"""A head in speculators' layout computes what it does in c2t's."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from c2t.drafting.export import export_speculators
from c2t.errors import InputError
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.heads import embedding_of
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.target.target import Target
from pipelines.pair.recipes import PAIRS
from tests.toys import randomise


def test_an_eagle3_head_in_speculators_layout(tmp_path: Path) -> None:
    """Read by c2t's reader of that layout; the target's rows and embedding are its own there."""
    target = Target(AutoModelForCausalLM.from_pretrained("checkpoints/tiny/target", dtype=torch.float32))
    tokens = torch.arange(0, 8192, 3)
    head = randomise(Eagle3Head(PAIRS["tiny"].head, len(tokens), target_rows=True), seed=1)
    head.d2t.copy_(tokens - torch.arange(len(tokens)))
    head.t2d[tokens] = True
    save_head(head.to(torch.bfloat16), tmp_path / "draft_eagle3")
    folder = export_speculators(tmp_path / "draft_eagle3", target, "tiny")
    ours, theirs = (
        load_head(place, embedding_of(target), target.lm_head) for place in (tmp_path / "draft_eagle3", folder)
    )
    assert not theirs.shares_lm_head
    assert theirs.taps(target.num_layers) == ours.taps(target.num_layers)
    features, ids = torch.randn(1, 5, 3 * 256), torch.randint(8192, (1, 5))
    with torch.no_grad():
        found, wanted = (one.logits(one(one.read(features), ids), target.lm_head).bfloat16() for one in (theirs, ours))
    assert found.equal(wanted)
    with pytest.raises(InputError, match="--kind eagle3"):
        export_speculators(Path("checkpoints/tiny/draft"), target, "tiny")
