"""Stock models with c2t's tree attention say what they say with SDPA and the dense mask."""

import copy

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, PreTrainedConfig

from c2t.errors import InputError
from c2t.kernels.tree_attention import Ranges, tree_attention, triton_attention
from c2t.kernels.tree_mask import TreeMask
from c2t.models.target import attention
from c2t.models.target.attention import TREE_ATTENTION, tree_arguments
from c2t.models.target.target import Target
from c2t.policies import Eagle2
from c2t.sampling import Sampling
from c2t.verification.target_verifier import pad
from tests.kernels.test_tree_attention import exact_attention
from tests.rounding import assert_same_network, assert_within
from tests.toys import (
    FAMILIES,
    PROMPTS,
    SIZES,
    VOCABULARY,
    WINDOW,
    TableDraft,
    language_model,
    perturbed,
    random_table,
    root_of,
    run,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where it is Triton's interpreter


def wide(family: str) -> PreTrainedConfig:
    """A family with heads of 16, which the kernel cuts into blocks."""
    config = copy.deepcopy(FAMILIES[family])
    config.update({"head_dim": 16} if hasattr(config, "head_dim") else {"hidden_size": 64})
    return config


SERVED = [family for family in FAMILIES if family not in ("gpt_oss", "phi3-longrope")]  # sinks; as phi3


def target_of(family: str) -> Target:
    return Target(language_model(wide(family)))


def rounds(target: Target) -> list[torch.Tensor]:
    """Logits of two trees over rows of different length, in depth-first order."""
    session = target.session()
    logits = [session.prefill(*pad(PROMPTS, torch.device("cpu"))).logits.values]
    for seed in range(2):
        table = TableDraft(random_table(VOCABULARY, seed))
        tree = Eagle2(K=3, levels=3, N=12)(table, root_of(*[5 + seed] * len(PROMPTS))).heavy_first()
        logits.append(session.verify(tree).logits.padded()[tree.alive])
        path = tree.ancestors()[:, -1].int().sort(dim=1, descending=True, stable=True).indices
        session.commit(path, tree.depth[:, -1] + 2)
    return logits


@pytest.mark.parametrize("family", SERVED)
@torch.no_grad()
def test_logits_are_those_of_sdpa(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = []

    def watched(query, key, value, mask, scale, window, ranges):
        windows.append(window)
        return tree_attention(query, key, value, mask, scale, window, ranges=ranges)

    monkeypatch.setattr(attention, "tree_attention", watched)
    target = target_of(family)
    expected = rounds(target)
    assert windows == []
    target.use_tree_attention()
    for ours, stock in zip(rounds(target), expected, strict=True):
        assert_same_network(ours, stock)
    # two trees, two layers, of which one or both may have a window
    both, none = [WINDOW, WINDOW], [None, None]
    sliding = {"mistral": both, "mixtral": both, "phi3": both}
    sliding |= {"qwen2-sliding": [None, WINDOW], "gemma3": [WINDOW, None], "olmo3": [WINDOW, None]}
    assert windows == 2 * sliding.get(family, none)


@torch.no_grad()
def test_kernel_serves_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel in place of the twin, in float32: what it makes of the model's own tensors is right up to
    rounding, and with exact attention in its place the model says what it says with SDPA."""
    served = []

    def kernel(query, key, value, mask, scale, window, ranges):
        narrow = [part.to(DEVICE, torch.float32) for part in (query, key, value)]
        there = TreeMask(*(column.to(DEVICE) for column in mask)), scale, window
        places = Ranges(*(column.to(DEVICE) for column in ranges[:3]), ranges.longest)
        found = triton_attention(*narrow, *there, ranges=places, part=32).cpu()
        exact, bound = torch.empty_like(query), torch.empty_like(query)
        for row, (first, start, tail) in enumerate(zip(*(places.tolist() for places in ranges[:3]), strict=True)):
            size = int(mask.sizes[row])
            own = mask.row(row, size)
            mine, keys = slice(first, first + size), slice(start, tail + size)
            parts = query[:, :, mine], key[:, :, keys], value[:, :, keys]
            exact[:, :, mine] = exact_attention(*parts, own, scale, window)[0]
            bound[:, :, mine] = exact_attention(*(part.float() for part in parts), own, scale, window)[1]
        assert_within(found, exact, bound)
        served.append(found)
        return exact

    target = target_of("llama")
    expected = rounds(target)
    monkeypatch.setattr(attention, "tree_attention", kernel)
    target.use_tree_attention()
    for ours, stock in zip(rounds(target), expected, strict=True):
        assert_same_network(ours, stock)
    assert len(served) == 2 * 2  # trees and layers


def test_decoding_writes_the_same_text() -> None:
    target = target_of("mistral")
    draft, policy = perturbed(target), Eagle2(K=4, levels=3, N=14)
    expected, _ = run(target, draft, policy, PROMPTS, Sampling(), new=12)
    target.use_tree_attention()
    assert run(target, draft, policy, PROMPTS, Sampling(), new=12)[0] == expected
    assert target.has_tree_attention


@torch.no_grad()
def test_stock_model_with_its_own_cache() -> None:
    """As the module's docstring says, without a Target."""
    model = language_model(wide("llama"))
    prompt, tree = torch.tensor([PROMPTS[1]]), torch.tensor([[5, 6, 7, 8]])
    parent, depth = torch.tensor([[-1, 0, 0, 2]]), torch.tensor([[-1, 0, 0, 1]])
    lengths = torch.tensor([prompt.shape[1]])
    mask = TreeMask.of(parent, parent >= -1, lengths + depth + 1, lengths)
    model.set_attn_implementation(TREE_ATTENTION)
    cache = DynamicCache()
    model(prompt, past_key_values=cache)
    logits = model(tree, position_ids=mask.positions.long(), past_key_values=cache, **tree_arguments(mask)).logits[0]
    for slot, path in enumerate([[5], [5, 6], [5, 7], [5, 7, 8]]):
        plain = model(torch.tensor([[*PROMPTS[1], *path]])).logits[0, -1]
        assert_same_network(logits[slot], plain)


@pytest.mark.parametrize("dim", [8, 24])
def test_heads_that_the_kernel_cannot_cut_into_blocks_are_refused(dim: int) -> None:
    target = Target(language_model(LlamaConfig(**{**SIZES, "head_dim": dim})))
    with pytest.raises(InputError, match=f"not {dim}"):
        target.use_tree_attention()
    assert not target.has_tree_attention
