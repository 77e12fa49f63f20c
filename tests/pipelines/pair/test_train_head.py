"""The head trainer: masks and inputs of the deeper levels are those of drafting; a run improves and resumes."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.models.eagle import EagleHead
from c2t.models.eagle3 import Eagle3Head
from c2t.models.medusa import MedusaHead
from c2t.models.target import Target
from pipelines.pair.train_head import (
    Batch,
    FeatureRows,
    HeadSettings,
    agreement,
    distillation_loss,
    eagle3_loss,
    frequent_tokens,
    level_mask,
    medusa_loss,
    soft_cross_entropy,
    target_features,
    train_head,
    upstream_loss,
)
from tests.rounding import ROUNDINGS, assert_same_sums, assert_within, figure, growth, stored_bound

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}


def pair() -> tuple[LlamaForCausalLM, EagleHead, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    target = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=2, **SIZES)).eval().requires_grad_(False)
    head = EagleHead(LlamaConfig(vocab_size=32, num_hidden_layers=1, **SIZES))
    head.embed_tokens = target.model.embed_tokens
    ids = torch.randint(32, (12, 10))
    return target, head, ids, target_features(target, ids)[0].float()


def eagle3() -> tuple[LlamaForCausalLM, Eagle3Head, Batch]:
    """A head of 20 of the 32 tokens, which reads the inputs of layers 0, 1 and 2 (the last one's output)."""
    target, _, ids, _ = pair()
    features, taps = target_features(target, ids, (0, 1, 2))
    head = Eagle3Head(LlamaConfig(vocab_size=32, num_hidden_layers=1, **SIZES), draft_vocab_size=20)
    own = frequent_tokens(ids, 20, 32)
    head.d2t.copy_(own - torch.arange(20))
    head.t2d[own] = True
    head.embed_tokens = target.model.embed_tokens
    return target, head, Batch(ids, taps.float(), features.float())


def medusa() -> tuple[LlamaForCausalLM, MedusaHead, Batch]:
    target, layer, ids, features = pair()
    head = MedusaHead(layer.config, 2)
    head.embed_tokens = target.model.embed_tokens
    head.load_state_dict(head.state_dict() | layer.state_dict())
    head.requires_grad_(False).heads.requires_grad_(True)
    for block in head.heads:
        nn.init.normal_(block.weight)
    return target, head, Batch(ids, features, features)


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


def test_level_mask_has_the_prefix_and_the_own_chain() -> None:
    mask = level_mask(3, 3)[0, 0]
    assert mask.sum(1).tolist() == [1, 2, 3, 2, 3, 4, 3, 4, 5]
    assert mask[7].nonzero()[:, 0].tolist() == [0, 1, 4, 7]  # level 2, slot 1: true slots 0 and 1, level 1's slot 1


def test_upstream_loss_is_regression_plus_a_tenth_of_the_cross_entropy() -> None:
    target, head, ids, features = pair()
    predicted, true = head(features[:, :-1], ids[:, 1:]), features[:, 1:]
    expected = F.smooth_l1_loss(predicted, true) + 0.1 * soft_cross_entropy(target.lm_head, predicted, true)
    assert_same_sums(upstream_loss(head, target.lm_head, Batch(ids, features, features), noise=0.0), expected)


def test_soft_cross_entropy_is_least_at_the_target() -> None:
    target, _, _, features = pair()
    least = soft_cross_entropy(target.lm_head, features[0], features[0])
    assert least < soft_cross_entropy(target.lm_head, features[0] + 0.5, features[0])


def test_second_level_is_fed_as_a_drafted_token_is() -> None:
    """One row by hand: true slots up to j, then slot j's own prediction with the next token at the next position."""
    target, head, ids, features = pair()
    n, j = 10 - 2, 3
    first = head(features[:1, :n], ids[:1, 1 : n + 1])
    inputs = torch.cat([features[:1, : j + 1], first[:, j : j + 1]], 1)
    tokens = torch.cat([ids[:1, 1 : j + 2], ids[:1, j + 2 : j + 3]], 1)
    by_hand = head(inputs, tokens)[:, -1]
    positions = torch.cat([torch.arange(n), torch.arange(n) + 1])[None]
    both = torch.cat([features[:1, :n], first], 1), torch.cat([ids[:1, 1 : n + 1], ids[:1, 2 : n + 2]], 1)
    assert_same_sums(head(*both, positions, level_mask(n, 2))[:, n + j], by_hand)
    one = distillation_loss(head, target.lm_head, Batch(ids, features, features), noise=0.0, levels=1)
    true, predicted = features[:, 1:], head(features[:, :-1], ids[:, 1:])
    expected = soft_cross_entropy(target.lm_head, predicted, true) + 0.1 * F.smooth_l1_loss(predicted, true)
    assert_same_sums(one, expected)


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
    whole = train_head(head, target.lm_head, distillation_loss, data, settings, tmp_path / "whole")
    assert agreement(head, target.lm_head, data, data.train) > before

    _, stopped, _, _ = pair()
    rows = Interrupted(ids, features, 2, stop=23)
    with pytest.raises(Stop):
        train_head(stopped, target.lm_head, distillation_loss, rows, settings, tmp_path / "parts")
    _, fresh, _, _ = pair()
    rest = Interrupted(ids, features, 2)
    run = train_head(fresh, target.lm_head, distillation_loss, rest, settings, tmp_path / "parts")
    assert run.step == whole.step == 60
    assert 0 < min(step for step in rest.asked if step) <= 23
    assert 0 not in rest.asked
    for one, other in zip(head.parameters(), fresh.parameters(), strict=True):
        assert one.equal(other)


def test_tapped_states_are_what_the_runtime_taps() -> None:
    target, head, batch = eagle3()
    runtime = Target(target)
    runtime.tap((0, 1))
    features = runtime.session().prefill(batch.ids, torch.full((12,), 10)).features
    computed = growth(ROUNDINGS) * features.abs().max()
    assert_within(batch.inputs[..., :32], features, stored_bound(features, torch.float16) + computed)
    assert head.fc.in_features == batch.inputs.shape[-1] == 48


def test_the_reduced_vocabulary_is_the_most_frequent_tokens() -> None:
    assert frequent_tokens(torch.tensor([[5, 5, 1, 7, 7, 7, 3, 0, 0]]), 3, 9).tolist() == [0, 5, 7]


def test_eagle3_loss_is_the_cross_entropy_over_its_own_vocabulary() -> None:
    """One unrolled step by hand, and a head that is trained by it agrees more."""
    target, head, batch = eagle3()
    hidden = head(head.read(batch.inputs[:, :-1]), batch.ids[:, 1:])
    logits = target.lm_head(batch.features[:, 1:])
    known = head.t2d[logits.argmax(-1)]
    assert 0 < known.sum() < known.numel()
    mine = head.logits(hidden, target.lm_head)[known][:, head.t2d].log_softmax(-1)
    by_hand = -(logits[known][:, head.t2d].softmax(-1) * mine).sum(-1).mean()
    assert_same_sums(eagle3_loss(head, target.lm_head, batch, noise=0.0, levels=1), by_hand)


@pytest.mark.slow
def test_eagle3_training_improves_the_head(tmp_path: Path) -> None:
    target, head, batch = eagle3()
    data = FeatureRows(batch.ids, batch.features, 2, batch.inputs)
    before = agreement(head, target.lm_head, data, data.train)
    settings = HeadSettings(steps=40, rows=5, learning_rate=5e-3)
    train_head(head, target.lm_head, eagle3_loss, data, settings, tmp_path)
    assert agreement(head, target.lm_head, data, data.train) > before


def test_held_back_rows_are_never_trained_on() -> None:
    data = FeatureRows(torch.arange(20)[:, None], torch.zeros(20, 1, 4), held_back=4)
    seen = {int(i) for step in range(40) for i in data.batch(step, HeadSettings(rows=4)).ids}
    assert seen == set(range(20)) - set(data.held.tolist())


def test_the_embedding_stays_the_targets() -> None:
    _, head, _, _ = pair()
    assert isinstance(head.embed_tokens, nn.Embedding)
    assert not head.embed_tokens.weight.requires_grad
