"""EAGLE-3 heads: upstream's files and forward, and the target's three hidden states that they read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from c2t.errors import InputError
from c2t.models.drafts.eagle3 import Eagle3Head, default_taps
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.target.target import Target
from c2t.policies import Eagle2, Plain
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from tests.eagle_reference import CONFIG, eagle3_forward, eagle3_state, write_head
from tests.rounding import assert_same_network
from tests.toys import PROMPTS, SIZES, VOCABULARY, language_model, randomise, run

LAYERS = 8
EAGLE3 = {**CONFIG, "draft_vocab_size": 30}


def deep_target() -> Target:
    return Target(language_model(LlamaConfig(**{**SIZES, "num_hidden_layers": LAYERS}), spread=0.2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_head(tmp_path / "head", EAGLE3, eagle3_state(EAGLE3, SIZES["hidden_size"]), pickled=True)


@torch.no_grad()
def test_forward_is_upstreams(folder: Path) -> None:
    target = deep_target()
    head = load_head(folder, target.embed_tokens)
    features, tokens = (
        torch.randn(7, 3 * SIZES["hidden_size"], dtype=torch.float64),
        torch.tensor([3, 1, 4, 1, 5, 9, 2]),
    )
    hidden = head(head.read(features[None]), tokens[None])
    state = eagle3_state(EAGLE3, SIZES["hidden_size"])
    y, reduced = eagle3_forward(EAGLE3, state, target.embed_tokens.weight, features, tokens)
    assert_same_network(hidden[0], y)
    logits = head.logits(hidden, target.lm_head)[0]
    kept = torch.arange(30) + state["d2t"]
    assert_same_network(logits[:, kept], reduced)
    assert logits.isfinite().sum() == 7 * 30
    assert logits.shape[1] == VOCABULARY


@torch.no_grad()
def test_features_are_the_inputs_of_three_layers() -> None:
    target = deep_target()
    target.tap(default_taps(LAYERS))
    tokens = torch.tensor([PROMPTS[1]])
    features = target.session().prefill(tokens, torch.tensor([tokens.shape[1]])).features
    states = target.model(tokens, output_hidden_states=True).hidden_states
    assert default_taps(LAYERS) == (2, 4, 5)
    assert_same_network(features, torch.cat([states[2], states[4], states[5]], -1))


def test_a_shallow_target_is_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        default_taps(5)


def test_written_as_read(folder: Path, tmp_path: Path) -> None:
    target = deep_target()
    head = load_head(folder, target.embed_tokens)
    save_head(head, tmp_path / "again", embed_tokens=True)
    again = load_head(tmp_path / "again", target.embed_tokens)
    assert again.embed_tokens is target.embed_tokens
    for name, tensor in head.state_dict().items():
        assert again.state_dict()[name].equal(tensor), name


def test_maps_are_dropped_where_the_vocabularies_are_equal(tmp_path: Path) -> None:
    config = {**EAGLE3, "draft_vocab_size": VOCABULARY}
    write_head(tmp_path, config, eagle3_state(config, SIZES["hidden_size"]))
    head = load_head(tmp_path, deep_target().embed_tokens)
    assert "d2t" not in head.state_dict()


@torch.no_grad()
def test_a_head_may_leave_its_rows_to_the_target(tmp_path: Path) -> None:
    """The file has the ids only; logits are those of the target's LM head at the draft's tokens."""
    target, config = deep_target(), LlamaConfig(**{**SIZES, "num_hidden_layers": 1})
    made = randomise(Eagle3Head(config, draft_vocab_size=30, target_rows=True), seed=3)
    tokens = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))[:30].sort().values
    made.d2t.copy_(tokens - torch.arange(30))
    made.t2d[tokens] = True
    save_head(made, tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    head = load_head(tmp_path, target.embed_tokens, target.lm_head)
    hidden = torch.randn(1, 5, SIZES["hidden_size"], dtype=torch.float64)
    wanted = target.lm_head(head.norm(hidden))
    logits = head.logits(hidden, target.lm_head)
    assert_same_network(logits[..., tokens], wanted[..., tokens])
    assert logits.isfinite().sum() == 5 * 30
    with pytest.raises(InputError, match="stores no LM head"):
        load_head(tmp_path, target.embed_tokens)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3)], ids=["greedy", "sampled"])
def test_text_is_the_targets_and_replay_is_live(folder: Path, sampling: Sampling) -> None:
    target = deep_target()
    head = load_head(folder, target.embed_tokens).requires_grad_(False)
    target.tap(head.taps(LAYERS))
    draft, policy = EagleDraft(head, target.lm_head), Eagle2(K=3, levels=3, N=10)
    plain, _ = run(target, None, Plain(), PROMPTS, new=12, sampling=sampling)
    texts, steps = run(target, draft, policy, PROMPTS, new=12, sampling=sampling)
    assert texts == plain
    written = write_continuations(target, PROMPTS, max_new_tokens=12, beyond=4, sampling=sampling)
    replayed = list(replay(draft, policy, written, seed=sampling.seed, temperature=sampling.temperature))
    assert [step.count.tolist() for step in replayed] == [step.count.tolist() for step in steps]
