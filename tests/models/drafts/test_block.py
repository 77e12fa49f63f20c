"""Block drafter: its distributions against the definition, DFlash's files, exact decoding, and what is refused."""

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig

from c2t.errors import InputError
from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.block_draft import BlockDraft
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.loading.load import load_draft
from c2t.policies import Eagle2
from c2t.protocols import Root
from c2t.verification.target_verifier import pad
from tests.block_reference import block_states
from tests.models.drafts.test_medusa import assert_greedy_text_and_replay, assert_law_is_kept
from tests.rounding import assert_same_sums
from tests.test_joining import EAGLE2, GREEDY, assert_join_is_seamless
from tests.toys import PROMPTS, SIZES, VOCABULARY, deep_pairs, randomise

CPU = torch.device("cpu")
SIZE, READ = 4, (1, 3, 4)  # positions of a block; layers of the target whose outputs it reads
FORM = BlockForm(SIZE, 7, READ)
CONFIG = LlamaConfig(**SIZES | {"num_hidden_layers": 2, "head_dim": 8})


def tapped():
    """A target whose features are the drafter's, and the drafter."""
    target = copy.deepcopy(deep_pairs()["eagle3"][0])  # of its own: other tests have theirs tapped elsewhere
    head = randomise(BlockHead(CONFIG, FORM).double(), seed=9, spread=0.3).requires_grad_(False).eval()
    head.embed_tokens = target.embed_tokens
    target.tap(head.taps(7))
    return target, BlockDraft(head, target.lm_head)


TARGET, DRAFT = tapped()


def read_by(text: list[int]) -> Tensor:
    """Outputs of the target's layers READ at the text's positions."""
    states = TARGET.model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1][0] for layer in READ], -1)


@torch.no_grad()
def test_distributions_are_those_of_the_definition() -> None:
    """In two rows of different lengths, in their second round, and below the last mask."""
    texts, head = [PROMPTS[1], PROMPTS[1][:5]], DRAFT.head
    states = [read_by(text) for text in texts]
    session = DRAFT.session()
    first = [len(text) - 2 for text in texts]

    def observe(begins: list[int], ends: list[int]) -> None:
        parts = [slice(begin, end) for begin, end in zip(begins, ends, strict=True)]
        tokens, lengths = pad([text[part.start : part.stop + 1] for text, part in zip(texts, parts, strict=True)], CPU)
        features = pad_sequence([state[part] for state, part in zip(states, parts, strict=True)], batch_first=True)
        session.observe(tokens, features, lengths - 1)

    def roots(place: int) -> Root:
        return Root(torch.tensor([text[place] for text in texts]), None)

    observe([0, 0], first)
    Eagle2(K=2, levels=1, N=None)(session, roots(-2))
    observe(first, [len(text) - 1 for text in texts])
    tree = Eagle2(K=2, levels=SIZE + 1, N=None)(session, roots(-1))
    for depth in range(-1, SIZE):
        slots = (tree.depth[0] == depth).nonzero()[:, 0].expand(2, -1)
        rows = session.expand(tree, slots)
        for row in range(2):
            wanted = block_states(head, states[row][:-1], texts[row][-1])[1:]
            state = wanted[depth + 1] if depth + 1 < SIZE - 1 else torch.zeros_like(wanted[0])
            assert_same_sums(rows.hidden[row].float(), state.expand(slots.shape[1], -1), 100)  # norms are in float32
            logits = TARGET.lm_head.weight @ state
            assert_same_sums(rows.logits[row].float(), logits.expand(slots.shape[1], -1), 100)
    assert session.passes.tolist() == [1, 1]


@pytest.mark.slow
def test_greedy_text_is_the_targets_and_replay_its_rounds() -> None:
    # a random drafter is seldom right
    assert_greedy_text_and_replay(TARGET, DRAFT, Eagle2(K=12, levels=3, N=40))


@pytest.mark.slow
def test_sampled_trees_keep_the_law() -> None:
    assert_law_is_kept(DRAFT, TARGET)


@pytest.mark.slow
def test_rows_that_join_go_on_as_alone() -> None:
    assert_join_is_seamless(TARGET, DRAFT, EAGLE2, [GREEDY] * 4)


def test_files_are_dflashs(tmp_path: Path) -> None:
    save_head(DRAFT.head, tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["architectures"] == ["DFlashDraftModel"]
    assert raw["dflash_config"] == {"mask_token_id": 7, "target_layer_ids": list(READ)}
    again = load_head(tmp_path, TARGET.embed_tokens)
    attention = {f"layers.0.self_attn.{part}.weight" for part in ("q_proj", "k_proj", "o_proj", "q_norm", "k_norm")}
    assert attention | {"fc.weight", "hidden_norm.weight", "layers.1.mlp.up_proj.weight"} <= {*again.state_dict()}
    assert isinstance(again, BlockHead)
    assert again.size == SIZE
    assert all(again.state_dict()[name].float().equal(w.float()) for name, w in DRAFT.head.state_dict().items())
    loaded = load_draft(str(tmp_path), copy.deepcopy(deep_pairs()["eagle"][0]))
    assert isinstance(loaded, BlockDraft)


MASK = {"mask_token_id": 7}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"block_size": 1}, "block_size"),
        ({"block_size": "4"}, "block_size"),
        ({"dflash_config": 3}, "dflash_config must be an object"),
        ({"dflash_config": MASK}, "target_layer_ids is missing"),
        ({"dflash_config": {"mask_token_id": VOCABULARY, "target_layer_ids": [1, 3, 4]}}, "mask_token_id = 48 must be"),
        ({"dflash_config": MASK | {"target_layer_ids": [1, 3, 4], "topk": 4}}, "dflash_config.topk = 4 is not known"),
        ({"dflash_config": MASK | {"target_layer_ids": [1, 3, 6]}}, "must rise, up to 5"),
        ({"dflash_config": MASK | {"target_layer_ids": [3, 1, 4]}}, "must rise"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window is missing"),
        ({"num_target_layers": 8}, "trained for a target of 8 layers"),
        ({"logit_scale": 2.0}, "logit_scale = 2.0 is not supported"),
        ({"attention_bias": True}, "bias"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changed: dict, line: str, tmp_path: Path) -> None:
    save_head(DRAFT.head, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    with pytest.raises(InputError, match=line):
        load_draft(str(tmp_path), TARGET)
