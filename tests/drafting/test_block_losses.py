"""The losses of a DSpark head against loops in float64, block by block, and its states against drafting."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from c2t.caches.padded import KVCache
from c2t.drafting import block_losses, kinds
from c2t.drafting.learner import Learner
from c2t.drafting.rows import Rows, rows_of
from c2t.drafting.train import loaded
from c2t.models.drafts.block import BlockHead
from c2t.models.drafts.block_draft import BlockDraft
from c2t.models.loading.eagle_checkpoint import save_head
from c2t.models.target.target import Target
from c2t.tree import Tree
from tests.drafting.targets import given, in_float32, small_target, some_texts, text_of
from tests.rounding import assert_equal, assert_same_sums
from tests.toys import randomise

DSPARK, TOKENS = kinds.KINDS["dspark"], torch.arange(3, 43)


@pytest.fixture(scope="module")
def target() -> Target:
    return small_target()


@pytest.fixture
def head(target: Target) -> BlockHead:
    """In float64, with weights that all have a part in the loss."""
    head = DSPARK.make(given(target, "dspark"))
    embedding, head.embed_tokens = head.embed_tokens, None
    head = randomise(head.double(), seed=5, spread=0.3)
    head.embed_tokens = embedding
    return head


def some_rows() -> Rows:
    rows = rows_of(some_texts("dspark"))
    return rows._replace(inputs=rows.inputs.double(), features=rows.features.double())


def alone(head: BlockHead, rows: Rows, text: int, root: int) -> Tensor:
    """States of one block, after the text before its root alone."""
    cache = KVCache(head.num_layers)
    head.remember(rows.inputs[text : text + 1, :root], torch.arange(root)[None], cache)
    tokens = torch.tensor([[int(rows.ids[text, root]), *[head.form.mask_token] * (head.size - 1)]])
    mask = torch.ones(1, head.size, root + head.size, dtype=torch.bool)
    return head(tokens, root + torch.arange(head.size)[None], mask, cache)[0]


def by_definition(head: BlockHead, lm_head: Tensor, rows: Rows, ends: list[int]) -> Tensor:
    """DeepSpec's loss, slot by slot. ends: lengths of the texts."""
    slots: list[list[Tensor]] = [[] for _ in range(head.size)]
    first, second = head.markov_head.markov_w1.weight, head.markov_head.markov_w2.weight[TOKENS]
    for text, end in enumerate(ends):
        for root in (rows.judged[text].nonzero()[:, 0] + 1).tolist():
            states = alone(head, rows, text, root)
            for k in range(head.size):
                if root + k + 1 >= end:  # there is no token that the slot speaks of
                    continue
                before = first[rows.ids[text, root + k]]
                p = (lm_head @ rows.features[text, root + k]).softmax(0)
                q = (lm_head @ states[k] + second @ before).softmax(0)
                sure = torch.sigmoid(head.confidence_head.proj(torch.cat([states[k], before]))[0])
                kept = torch.minimum(p, q).sum()
                wrong = -(kept.detach() * sure.log() + (1 - kept.detach()) * (1 - sure).log())
                slots[k].append(-0.1 * (p * q.log()).sum() + 0.9 * (1 - kept) + wrong)
    return sum(math.exp(-k / 4) * sum(losses) / len(losses) for k, losses in enumerate(slots) if losses)


def test_the_loss_and_its_gradients_are_those_of_single_blocks(
    head: BlockHead, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_losses, "CHUNK", 5)  # more states than are computed together
    rows, lm_head = some_rows(), target.lm_head.weight[TOKENS]
    weights = DSPARK.learned(head)
    found = block_losses.dspark_losses(head, DSPARK.rows(head, lm_head, TOKENS), rows).total
    wanted = by_definition(head, lm_head, rows, [len(text.ids) for text in some_texts("dspark")])
    assert_same_sums(found.float(), wanted.float())
    for name, one, other in zip(
        weights, *(torch.autograd.grad(loss, list(weights.values())) for loss in (found, wanted)), strict=True
    ):
        assert_same_sums(one.float(), other.float(), what=name)


def test_a_block_sees_the_text_before_its_root_and_itself(head: BlockHead) -> None:
    rows, roots = some_rows(), torch.tensor([[3, 5], [2, 1], [4, 6]])
    states = block_losses.block_states(head, rows, roots)
    later, inputs, ids = roots.clone(), rows.inputs.clone(), rows.ids.clone()
    later[:, 1] = torch.tensor([4, 0, 5])
    for text, root in enumerate(roots[:, 0].tolist()):
        inputs[text, root:] += 1.0
        ids[text, root + 1 :] += 1
    changed = block_losses.block_states(head, rows._replace(inputs=inputs, ids=ids), later)
    assert_equal(changed[:, 0], states[:, 0])
    inputs[:, 0] += 1.0
    assert (block_losses.block_states(head, rows._replace(inputs=inputs), roots) != states).any((1, 2, 3)).all()


def test_slots_are_those_of_drafting(head: BlockHead, target: Target) -> None:
    """A session drafts the true path, level after level: the bias of the token before holds at the root, too."""
    rows, lm_head = some_rows(), target.lm_head
    joint = DSPARK.rows(head, lm_head.weight, torch.arange(48))
    roots = torch.tensor([[2], [1], [1]])
    states = block_losses.block_states(head, rows, roots)[:, 0]
    draft = BlockDraft(head.requires_grad_(False), lm_head)
    for text, root in enumerate(roots[:, 0].tolist()):
        session = draft.session()
        session.observe(
            rows.ids[text : text + 1, : root + 1], rows.inputs[text : text + 1, :root], torch.tensor([root])
        )
        tree, slots = Tree.root(rows.ids[text, root : root + 1]), torch.zeros(1, 1, dtype=torch.long)
        for k in range(min(head.size, rows.ids.shape[1] - root - 1)):
            before = head.markov_head.markov_w1.weight[rows.ids[text, root + k]]
            wanted = (joint @ torch.cat([states[text, k], before])).log_softmax(0)
            assert_same_sums(session.expand(tree, slots).log_probs[0, 0], wanted)
            following, zero = rows.ids[text, root + k + 1].view(1, 1, 1), torch.zeros(1, 1, dtype=torch.double)
            tree = tree.extend(tree.children(slots, following, zero[None], zero))
            slots = torch.full_like(slots, tree.size - 1)


def test_the_judged_states_are_first_slots(head: BlockHead) -> None:
    rows = some_rows()
    states = DSPARK.states(head, rows)
    for state, (text, slot) in zip(states, rows.judged.nonzero().tolist(), strict=True):
        before = head.markov_head.markov_w1.weight[rows.ids[text, slot + 1]]
        assert_same_sums(state, torch.cat([alone(head, rows, text, slot + 1)[0], before]))


def test_roots_are_judged_positions_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_losses, "BLOCKS", 3)
    judged = rows_of([text_of(list(range(20)), 4), text_of([3, 4, 5], 1)]).judged
    drawn = [block_losses.random_roots(judged) for _ in range(20)]
    for roots, found in drawn:
        assert found.sum(1).tolist() == [3, 1]
        assert all(len(set(row.tolist())) == 3 for row in roots)
        assert judged.gather(1, roots - 1).equal(found)
    assert {root for roots, _ in drawn for root in roots[0].tolist()} == set(range(3, 19))


def test_a_few_steps_lower_the_loss(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("c2t.drafting.learner.WARMUP", 1)
    steps = iter(range(16))
    monkeypatch.setattr("c2t.drafting.learner.time.monotonic", lambda: float(next(steps)))
    texts, model = some_texts("dspark"), in_float32(target)
    learner = Learner(DSPARK.make(given(target, "dspark")), DSPARK, model.lm_head, 6e-3)

    def loss() -> float:
        return DSPARK.losses(learner.head, learner.rows(TOKENS), rows_of(texts)).total.item()

    before = loss()
    learner.learn(texts, TOKENS, 0, 15.0, lambda: 0.0, lambda: None)
    assert learner.steps == 15
    assert loss() < 0.9 * before
    assert set(learner.optimisers[1].param_groups[0]["params"]) >= {*learner.head.markov_head.parameters()}


def test_a_stored_head_goes_on_with_rows_for_all_tokens(target: Target, tmp_path) -> None:
    model = Target(in_float32(target))
    head = DSPARK.make(given(target, "dspark"))
    nn.init.normal_(head.markov_head.markov_w2.weight)
    rows, embedding = head.markov_head.markov_w2.weight.detach().clone(), head.embed_tokens
    head.restrict(TOKENS)
    save_head(head, tmp_path)
    again = loaded(tmp_path, model)
    assert_equal(again.markov_head.markov_w2.weight[TOKENS], rows[TOKENS])
    assert not again.markov_head.markov_w2.weight[: TOKENS[0]].any()
    assert DSPARK.trainable(again)
    assert_equal(again.embed_tokens.weight, embedding.weight)
    assert set(DSPARK.learned(again)) == set(DSPARK.learned(head))


def test_forms_of_others_are_not_trained_further(target: Target) -> None:
    head = DSPARK.make(given(target, "dspark"))
    assert head.form.mask_token == 0  # the first that no text holds
    for changed in ({"from_anchor": False}, {"layer_ids": (0, 2, 4)}, {"confidence": False}, {"own_lm_head": True}):
        head.form = replace(head.form, **changed)
        assert not DSPARK.trainable(head)
        head.form = kinds.dspark_form(7, 0)
    assert kinds.unused_token(some_texts("dspark"), 3) == 0
    assert kinds.unused_token([text_of([0, 1, 2, 2, 0], 1)], 3) == 1
