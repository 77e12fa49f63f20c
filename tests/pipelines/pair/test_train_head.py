"""The head trainer: losses by hand; a run improves and resumes."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.models.drafts.eagle import EagleHead
from c2t.models.drafts.medusa import MedusaHead
from pipelines.pair.train_head import (
    Batch,
    FeatureRows,
    HeadSettings,
    agreement,
    medusa_loss,
    soft_cross_entropy,
    target_features,
    train_head,
    upstream_loss,
)
from tests.rounding import assert_same_sums, figure

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}


def pair() -> tuple[LlamaForCausalLM, EagleHead, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    target = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=2, **SIZES)).eval().requires_grad_(False)
    head = EagleHead(LlamaConfig(vocab_size=32, num_hidden_layers=1, **SIZES))
    head.embed_tokens = target.model.embed_tokens
    ids = torch.randint(32, (12, 10))
    return target, head, ids, target_features(target, ids).float()


def medusa() -> tuple[LlamaForCausalLM, MedusaHead, Batch]:
    target, layer, ids, features = pair()
    head = MedusaHead(layer.config, 2)
    head.embed_tokens = target.model.embed_tokens
    head.load_state_dict(head.state_dict() | layer.state_dict())
    head.requires_grad_(False).heads.requires_grad_(True)
    for block in head.heads:
        nn.init.normal_(block.weight)
    return target, head, Batch(ids, features)


def test_medusas_loss_compares_every_block_with_its_own_token_ahead() -> None:
    target, head, batch = medusa()
    guess = head(batch.features[:, :-1], batch.ids[:, 1:])
    wanted = torch.zeros(())
    for depth in (1, 2):  # slot j's block `depth` guesses the state of position j + 1 + depth
        pairs = [(head.at(guess[:, j], depth), batch.features[:, j + 1 + depth]) for j in range(7)]
        ours, true = (torch.cat(part) for part in zip(*pairs, strict=True))
        wanted = wanted + 0.8**depth * soft_cross_entropy(target.lm_head, ours, true)
    loss = medusa_loss(head, target.lm_head, batch, noise=0.0)
    assert_same_sums(loss, wanted)
    loss.backward()
    assert {name for name, weight in head.named_parameters() if weight.grad is not None} == {
        f"heads.{block}.{part}" for block in (0, 1) for part in ("weight", "bias")
    }


def test_a_medusa_head_agrees_on_the_token_after_the_next_one() -> None:
    target, head, batch = medusa()
    guess = head.at(head(batch.features[:, :-2], batch.ids[:, 1:-1]), 1)
    same = target.lm_head(guess).argmax(-1) == target.lm_head(batch.features[:, 2:]).argmax(-1)
    data = FeatureRows(batch.ids, batch.features, held_back=2)
    assert agreement(head, target.lm_head, data, torch.arange(12)) == figure(float(same.float().mean()))


def test_upstream_loss_is_regression_plus_a_tenth_of_the_cross_entropy() -> None:
    target, head, ids, features = pair()
    predicted, true = head(features[:, :-1], ids[:, 1:]), features[:, 1:]
    expected = F.smooth_l1_loss(predicted, true) + 0.1 * soft_cross_entropy(target.lm_head, predicted, true)
    assert_same_sums(upstream_loss(head, target.lm_head, Batch(ids, features), noise=0.0), expected)


def test_soft_cross_entropy_is_least_at_the_target() -> None:
    target, _, _, features = pair()
    least = soft_cross_entropy(target.lm_head, features[0], features[0])
    assert least < soft_cross_entropy(target.lm_head, features[0] + 0.5, features[0])


class Stop(Exception):
    pass


class Interrupted(FeatureRows):
    """Rows that end in the middle of a run. asked: the steps whose batches were asked for."""

    def __init__(self, *rows, stop: int | None = None):
        super().__init__(*rows)
        self.stop, self.asked = stop, []

    def batch(self, step: int, settings: HeadSettings) -> Batch:
        if step == self.stop:
            raise Stop
        self.asked.append(step)
        return super().batch(step, settings)


@pytest.mark.slow
def test_training_improves_the_head_and_a_stopped_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    target, head, ids, features = pair()
    data = FeatureRows(ids, features, held_back=2)
    before = agreement(head, target.lm_head, data, data.train)
    settings = HeadSettings(steps=60, rows=5, learning_rate=5e-3, noise=0.0, checkpoint_seconds=0)
    whole = train_head(head, target.lm_head, upstream_loss, data, settings, tmp_path / "whole")
    assert agreement(head, target.lm_head, data, data.train) > before

    _, stopped, _, _ = pair()
    rows = Interrupted(ids, features, 2, stop=23)
    with pytest.raises(Stop):
        train_head(stopped, target.lm_head, upstream_loss, rows, settings, tmp_path / "parts")
    _, fresh, _, _ = pair()
    rest = Interrupted(ids, features, 2)
    run = train_head(fresh, target.lm_head, upstream_loss, rest, settings, tmp_path / "parts")
    assert run.step == whole.step == 60
    assert 0 < min(step for step in rest.asked if step) <= 23
    assert 0 not in rest.asked
    for one, other in zip(head.parameters(), fresh.parameters(), strict=True):
        assert one.equal(other)


def test_held_back_rows_are_never_trained_on() -> None:
    data = FeatureRows(torch.arange(20)[:, None], torch.zeros(20, 1, 4), held_back=4)
    seen = {int(i) for step in range(40) for i in data.batch(step, HeadSettings(rows=4)).ids}
    assert seen == set(range(20)) - set(data.held.tolist())
