"""The language-model trainer: its batches, its schedule, and a resumed run that equals an unbroken one."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.errors import InputError
from pipelines.pair.train_lm import LMSettings, Packing, Progress, rate, train_lm
from tests.rounding import figure

SETTINGS = LMSettings(epochs=2, rows=2, length=8, checkpoint_seconds=0)
DOCUMENTS = [[0, *range(i, i + 9)] for i in range(1, 12)]


def small() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=1, **sizes))


def test_batches_depend_on_their_number_alone() -> None:
    forwards, again = Packing(DOCUMENTS, SETTINGS), Packing(DOCUMENTS, SETTINGS)
    batches = [forwards.batch(step) for step in range(2 * forwards.steps_per_epoch)]
    assert all(batch.shape == (2, 8) for batch in batches)
    for step in reversed(range(len(batches))):
        assert torch.equal(again.batch(step), batches[step])
    assert not torch.equal(batches[0], batches[forwards.steps_per_epoch])


def test_rate_warms_up_and_decays() -> None:
    assert rate(0.01, 0.02) == figure(0.495)
    assert rate(0.5, 0.02) == 0.5
    assert rate(1.0, 0.02) == 0.01


class Stop(Exception):
    pass


class Interrupted(Packing):
    def batch(self, step: int) -> torch.Tensor:
        if step == 5:
            raise Stop
        return super().batch(step)


def test_a_stopped_run_ends_with_the_weights_of_an_unbroken_one(tmp_path: Path) -> None:
    held = Packing(DOCUMENTS, SETTINGS)
    whole = train_lm(small(), Packing(DOCUMENTS, SETTINGS), held, tmp_path / "whole")
    with pytest.raises(Stop):
        train_lm(small(), Interrupted(DOCUMENTS, SETTINGS), held, tmp_path / "parts")
    rest = train_lm(small(), Packing(DOCUMENTS, SETTINGS), held, tmp_path / "parts")
    assert rest.step == whole.step == 2 * held.steps_per_epoch
    for one, other in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
        assert one.equal(other)
    again = train_lm(small(), Packing(DOCUMENTS, SETTINGS), held, tmp_path / "whole")
    assert again.step == whole.step, "what is finished is not trained again"


def test_minutes_end_a_run_early(tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=10**6, minutes=0.01)
    run = train_lm(small(), Packing(DOCUMENTS, settings), Packing(DOCUMENTS, settings), tmp_path)
    assert 0 < run.step < 10**6


def test_a_run_of_other_optimisers_is_not_gone_on_with(tmp_path: Path) -> None:
    model = small()
    adam = torch.optim.AdamW(model.parameters())
    Progress(model, [adam], tmp_path, 1).save()
    with pytest.raises(InputError, match="other optimisers"):
        Progress(small(), [adam, adam], tmp_path, 1)


def test_a_changed_recipe_brings_new_columns_into_the_log(tmp_path: Path) -> None:
    for values in ({"loss": 0.5, "lr": 0.1}, {"loss": 0.25, "deeper": 2.0, "lr": 0.1}, {"loss": 0.125, "lr": 0.1}):
        Progress(small(), [], tmp_path, 1).log(**values)
    with (tmp_path / "log.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["loss"] for line in lines] == ["0.5", "0.25", "0.125"]
    assert [line["deeper"] for line in lines] == ["", "2.0", ""]
