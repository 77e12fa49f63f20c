"""DSpark heads: every node against a chain of steps by the definition, files, exact decoding, and what is refused."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from c2t.errors import InputError
from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.block_draft import BlockDraft
from c2t.models.drafts.block_layers import LayerMask
from c2t.models.drafts.dflash2 import DFlash2Form
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.loading.load import load_draft, load_pair
from c2t.models.wrappers.ngrams import READING, NgramDraft
from c2t.policies import Eagle2, Plain
from c2t.protocols import NextTokenDistributions, Policy
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.target_verifier import generate, pad
from tests import tiny_heads
from tests.block_reference import after_correction, after_path, block_states
from tests.models.drafts.test_block import CONFIG, CPU, TARGET, read_by
from tests.models.drafts.test_medusa import assert_greedy_text_and_replay, assert_law_is_kept
from tests.rounding import assert_same_sums
from tests.table_constraint import follows, rows_of
from tests.toys import PROMPTS, VOCABULARY, emitted, path_of, randomise, root_of, run

SIZE, RANK = 3, 5
FORM = BlockForm(
    SIZE, 7, (1, 3, 4), from_anchor=True, markov_rank=RANK, confidence=True, confidence_reads_token=True
)  # fmt: skip
KEPT = torch.arange(1, VOCABULARY, 2)
DFLASH2 = BlockForm(SIZE + 1, 7, (1, 3, 4), dflash2=DFlash2Form(3, 8, RANK, 7, 0.7, 4.0, 1.5))


def draft_of(form: BlockForm = FORM, tokens: Tensor | None = None) -> BlockDraft:
    head = randomise(BlockHead(CONFIG, form).double(), seed=9, spread=0.3).requires_grad_(False).eval()
    head.embed_tokens, head.tokens = TARGET.embed_tokens, tokens
    return BlockDraft(head, TARGET.lm_head)


DRAFT = draft_of()
FORMS = {
    "vanilla": (FORM, None),
    "gated": (replace(FORM, markov_kind="gated", confidence_reads_token=False), None),
    "rnn": (replace(FORM, markov_kind="rnn"), None),
    "domino": (BlockForm(SIZE, 7, (1, 3, 4), from_anchor=True, domino=(6, RANK, 1)), None),
    "domino in place": (BlockForm(SIZE + 1, 7, (1, 3, 4), domino=(6, RANK, 0), draft_vocab=len(KEPT)), KEPT),
    "dflash2": (replace(DFLASH2, dflash2=DFlash2Form(2, 4, RANK, 6)), None),
    "dflash2, capped": (replace(DFLASH2, draft_vocab=len(KEPT)), KEPT),
    "treeflash": (BlockForm(SIZE + 1, 7, (1, 3, 4), treeflash=True), None),
    "in place": (replace(FORM, size=SIZE + 1, from_anchor=False), None),
    "windows": (replace(FORM, layer_masks=(LayerMask(4, True), LayerMask(None, False))), None),
    "causal": (replace(FORM, layer_masks=(LayerMask(None, True),) * 2), None),
    "wide windows": (replace(FORM, layer_masks=(LayerMask(3, False), LayerMask(5, False))), None),
    "own vocabulary": (replace(FORM, draft_vocab=len(KEPT)), KEPT),
}


def expanded(draft: BlockDraft, texts: list[list[int]], levels: int) -> tuple[Tree, Tensor, NextTokenDistributions]:
    """A tree of this many levels under each text's last token, its slots, and the distributions after them."""
    session = draft.session()
    tokens, lengths = pad(texts, CPU)
    states = [read_by(text) for text in texts]
    features = torch.nn.utils.rnn.pad_sequence([state[:-1] for state in states], batch_first=True)
    session.observe(tokens, features, lengths - 1)
    tree = Eagle2(K=2, levels=levels, N=None)(session, root_of(*(text[-1] for text in texts)))
    slots = torch.arange(tree.size).expand(len(texts), -1)
    rows = session.expand(tree, slots)
    session.refuse_nan()
    assert session.passes.tolist() == [1] * len(texts)  # the backbone runs once
    return tree, slots, rows


@torch.no_grad()
@pytest.mark.parametrize("name", FORMS)
def test_every_nodes_distribution_is_that_of_its_own_chain(name: str) -> None:
    """From the root, whose token has a bias too, to the last depth; all tokens are equal below it."""
    draft, texts = draft_of(*FORMS[name]), [PROMPTS[1], PROMPTS[3]]
    rows_of_head = TARGET.lm_head.weight if draft.head.tokens is None else TARGET.lm_head.weight[draft.head.tokens]
    tree, slots, found = expanded(draft, texts, SIZE + 1)
    for row, text in enumerate(texts):
        states = block_states(draft.head, read_by(text)[:-1], text[-1])
        for slot in slots[row].tolist():
            path = [text[-1], *path_of(tree, row, slot)]
            logits = found.logits[row, slot]
            if len(path) > SIZE:
                assert (logits[logits.isfinite()] == 0).all()
                assert found.confidence is None or found.confidence[row, slot] == 0
                continue
            if draft.head.form.treeflash:
                wanted, confidence = after_correction(draft.head, read_by(text)[:-1], path, rows_of_head), None
            else:
                wanted, confidence = after_path(draft.head, states, path, rows_of_head)
            seen = found.log_probs[row, slot] if draft.head.form.dflash2 else logits
            seen = seen if draft.head.tokens is None else seen[draft.head.tokens]
            assert seen.isinf().equal(wanted.isinf())
            assert_same_sums(seen.float(), wanted, 100)  # norms are in float32
            assert (found.confidence is None) == (confidence is None)
            if confidence is not None:
                assert_same_sums(found.confidence[row, slot].float(), torch.tensor(confidence), 100)


@torch.no_grad()
def test_alignments_read_other_slots() -> None:
    """From the anchor a block of B drafts B tokens, and the first are of the root's slot; in place the next slot's."""
    text, bare = PROMPTS[1], replace(FORM, markov_rank=0, confidence=False, confidence_reads_token=False)
    for form, first in ((bare, 0), (replace(bare, from_anchor=False), 1)):
        draft = draft_of(form)
        assert not draft.reads_path
        assert draft.head.drafts == SIZE - first
        _, _, rows = expanded(draft, [text], 1)
        states = block_states(draft.head, read_by(text)[:-1], text[-1])
        assert_same_sums(rows.logits[0, 0].float(), TARGET.lm_head.weight @ states[first], 100)
        assert rows.confidence is None


@pytest.mark.parametrize(
    ("name", "has_other"), [("vanilla", True), ("in place", True), ("dflash2", False), ("treeflash", False)]
)
def test_formats_with_one_alignment_have_no_other(name: str, has_other: bool) -> None:
    assert (draft_of(*FORMS[name]).realigned() is not None) == has_other


def test_a_wrong_reading_never_changes_the_text() -> None:
    texts = {}
    for name, draft in {"right": DRAFT, "other alignment": DRAFT.realigned(), "none": None}.items():
        texts[name], _ = run(TARGET, draft, Eagle2(K=4, levels=3, N=12) if draft else Plain(), PROMPTS)
    assert texts["right"] == texts["other alignment"] == texts["none"]


@torch.no_grad()
def test_the_root_has_a_bias() -> None:
    draft = draft_of()
    _, _, rows = expanded(draft, [PROMPTS[1]], 1)
    states = block_states(draft.head, read_by(PROMPTS[1])[:-1], PROMPTS[1][-1])
    gained = rows.logits[0, 0] - TARGET.lm_head.weight @ states[0]
    markov = draft.head.markov_head
    assert_same_sums(gained.float(), markov.markov_w2.weight @ markov.markov_w1.weight[PROMPTS[1][-1]], 200)
    assert draft.reads_path
    assert NgramDraft(draft).mixing is READING


def test_ids_name_outputs_and_minus_one_the_embeddings() -> None:
    assert BlockHead(CONFIG, replace(FORM, layer_ids=(-1, 2, 5))).taps(7) == (0, 3, 6)


@torch.no_grad()
def test_wrappers_keep_the_confidence() -> None:
    _, _, rows = expanded(NgramDraft(draft_of()), [PROMPTS[1]], 2)
    assert rows.confidence is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_greedy_text_is_the_targets_and_replay_its_rounds(name: str) -> None:
    assert_greedy_text_and_replay(TARGET, draft_of(*FORMS[name]), Eagle2(K=12, levels=3, N=40))


def test_constrained_text_is_that_of_plain_decoding() -> None:
    def write(policy: Policy) -> list[list[int]]:
        rows = rows_of(len(PROMPTS), VOCABULARY)
        settings = {"max_new_tokens": 8, "sampling": Sampling(), "constraints": rows}
        steps = generate(TARGET, draft_of(*FORMS["rnn"]), policy, PROMPTS, **settings)
        return [tokens[:8] for tokens in emitted(list(steps), len(PROMPTS))]

    texts = write(Eagle2(K=4, levels=3, N=20))
    assert texts == write(Plain())
    assert all(follows(text, VOCABULARY) for text in texts)


@pytest.mark.slow
def test_sampled_trees_keep_the_law() -> None:
    assert_law_is_kept(DRAFT, TARGET)


@pytest.mark.slow
def test_the_tiny_pair_writes_its_text_with_a_dspark_head(tmp_path: Path) -> None:
    """Greedy and sampled; n-grams of the text mixed in."""
    pair = load_pair("tiny", draft=f"{tiny_heads.saved('dspark', tmp_path)}+ngrams", dtype=torch.float32)
    assert pair.draft.reads_path
    prompts = [[5, 7, 11, 5, 7, 11, 5], [40, 3, 9, 9, 100]]
    for sampling in (Sampling(), Sampling(temperature=0.9, seed=3)):
        plain, _ = run(pair.target, None, Plain(), prompts, sampling)
        texts, steps = run(pair.target, pair.draft, Eagle2(K=4, levels=5, N=20), prompts, sampling)
        assert texts == plain
        assert any(step.tree.size > 4 for step in steps[1:])  # of which the target accepts some by luck


def saved(folder: Path, form: BlockForm = FORM, tokens: Tensor | None = None) -> Path:
    save_head(draft_of(form, tokens).head, folder)
    return folder


def test_files_are_deepspecs(tmp_path: Path) -> None:
    raw = json.loads((saved(tmp_path) / "config.json").read_text())
    wanted = {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": SIZE,
        "mask_token_id": 7,
        "target_layer_ids": [1, 3, 4],
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    assert {name: raw[name] for name in wanted} == wanted
    assert "dflash_config" not in raw
    state = load_file(tmp_path / "model.safetensors")
    assert state["markov_head.markov_w1.weight"].shape == (VOCABULARY, RANK)
    assert state["markov_head.markov_w2.weight"].shape == (VOCABULARY, RANK)
    assert state["confidence_head.proj.weight"].shape == (1, CONFIG.hidden_size + RANK)
    assert not {"embed_tokens.weight", "lm_head.weight"} & state.keys()  # the target's
    again = load_head(tmp_path, TARGET.embed_tokens)
    assert again.form == FORM
    assert all(again.state_dict()[name].float().equal(w.float()) for name, w in DRAFT.head.state_dict().items())
    loaded = load_draft(str(tmp_path), copy.deepcopy(TARGET))
    assert isinstance(loaded, BlockDraft)
    assert loaded.reads_path


@torch.no_grad()
@pytest.mark.parametrize("own", [True, False])
def test_copies_of_the_targets_rows_are_shared_and_other_rows_kept(own: bool, tmp_path: Path) -> None:
    state, file = load_file(saved(tmp_path) / "model.safetensors"), tmp_path / "model.safetensors"
    head_rows, embedding = (module.weight.detach() + own for module in (TARGET.lm_head, TARGET.embed_tokens))
    save_file(state | {"lm_head.weight": head_rows, "embed_tokens.weight": embedding.clone()}, file)
    draft = load_draft(str(tmp_path), copy.deepcopy(TARGET))
    assert (draft.head.lm_head is not None) == own
    assert (draft.head.embed_tokens.weight.equal(TARGET.embed_tokens.weight)) != own
    _, _, rows = expanded(draft, [PROMPTS[1]], 1)
    states = block_states(draft.head, read_by(PROMPTS[1])[:-1], PROMPTS[1][-1])
    wanted, _ = after_path(draft.head, states, PROMPTS[1][-1:], head_rows)
    assert_same_sums(rows.logits[0, 0].float(), wanted, 100)


@torch.no_grad()
@pytest.mark.parametrize("trained", [True, False])
def test_own_tokens_are_trained_with_or_cut_out_of_all(trained: bool, tmp_path: Path) -> None:
    if trained:
        saved(tmp_path, *FORMS["own vocabulary"])
    else:
        saved(tmp_path)
        save_file({"tokens": KEPT.int()}, tmp_path / "tokens.safetensors")
    draft = load_draft(str(tmp_path), copy.deepcopy(TARGET))
    assert draft.head.markov_head.markov_w2.weight.shape == (len(KEPT), RANK)
    _, _, rows = expanded(draft, [PROMPTS[1]], 1)
    states = block_states(draft.head, read_by(PROMPTS[1])[:-1], PROMPTS[1][-1])
    wanted, _ = after_path(draft.head, states, PROMPTS[1][-1:], TARGET.lm_head.weight[KEPT])
    assert_same_sums(rows.logits[0, 0, KEPT].float(), wanted, 100)
    assert rows.logits[0, 0, 0] == float("-inf")
    save_head(draft.head, tmp_path / "again")
    assert load_draft(str(tmp_path / "again"), copy.deepcopy(TARGET)).head.tokens.equal(KEPT)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"mask_token_id": None}, "mask_token_id is missing"),
        ({"mask_token_id": VOCABULARY}, "mask_token_id = 48 must be one of 48 tokens"),
        ({"target_layer_ids": None}, "target_layer_ids is missing"),
        ({"target_layer_ids": [1, 3, 6]}, "must rise, up to 5"),
        ({"target_layer_ids": [-2, 3, 4]}, "target_layer_ids"),
        ({"num_target_layers": 36}, "trained for a target of 36 layers"),
        ({"markov_rank": 4}, "markov_head.markov_w1.weight is \\(48, 5\\), the config says \\(48, 4\\)"),
        ({"markov_rank": 0}, "confidence_head_with_markov is true, but markov_rank is 0"),
        ({"markov_rank": 0, "enable_confidence_head": False}, "unexpected weights .*markov_head"),
        ({"markov_head_type": "lstm"}, "markov_head_type = lstm is not supported"),
        ({"enable_confidence_head": False}, "unexpected weights .*confidence_head"),
        ({"draft_vocab_size": 20}, "the config says \\(20, 5\\)"),
        ({"vocab_size": VOCABULARY + 1}, "vocab_size 49, the target 48"),
        ({"hidden_size": 40}, "hidden_size 40, the target 32"),
        ({"block_size": 0}, "block_size: .* = 0 must be at least 1"),
        ({"rope_theta": -1.0}, "rope_theta = -1.0 in RoPE must be a number above 0"),
        ({"rope_theta": float("nan")}, "rope_theta = nan in RoPE must be a number above 0"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor = 2 in RoPE must be a number above 0"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps = inf must be below 1"),
        ({"num_hidden_layers": 40}, r"missing weights \[.*\] and [0-9]+ more, unexpected weights \[\]"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changed: dict, line: str, tmp_path: Path) -> None:
    config = saved(tmp_path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    with pytest.raises(InputError, match=line):
        load_draft(str(tmp_path), TARGET)


def test_missing_tokens_are_refused(tmp_path: Path) -> None:
    (saved(tmp_path, *FORMS["own vocabulary"]) / "tokens.safetensors").unlink()
    with pytest.raises(InputError, match=f"draft_vocab_size = {len(KEPT)}, but d2t or tokens.safetensors is missing"):
        load_draft(str(tmp_path), TARGET)
