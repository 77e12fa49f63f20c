"""Hydra-style sequential heads: states along the path, files, exact decoding, and what is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from c2t.errors import InputError
from c2t.models import hydra
from c2t.models.eagle_checkpoint import save_head
from c2t.models.hydra import HydraDraft, HydraHead
from c2t.models.ngrams import NgramDraft
from c2t.models.pairs import load_draft
from c2t.policies import C2T, Eagle2, Plain
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from tests.models.test_medusa import assert_law_is_kept, observed
from tests.replay.test_every_position import assert_same, visited
from tests.rounding import assert_same_network
from tests.toys import PROMPTS, deep_pairs, random_eagle, randomise, root_of, run, toy_classifier

TARGET, MEDUSA = deep_pairs()["medusa"]
DEPTHS = len(MEDUSA.head.heads) + 1


def corrector() -> HydraHead:
    return randomise(HydraHead(TARGET.embed_tokens, DEPTHS, 12).double(), seed=8, spread=0.5).requires_grad_(False)


HYDRA = corrector()
DRAFT = HydraDraft(MEDUSA, HYDRA)


@torch.no_grad()
def test_states_are_those_of_the_definition_along_each_path() -> None:
    text = PROMPTS[1]
    _, features = observed(text)
    session, plain = DRAFT.session(), MEDUSA.session()
    for each in (session, plain):
        each.observe(torch.tensor([text]), features, torch.tensor([len(text) - 1]))
    tree = Eagle2(K=3, levels=DEPTHS, N=None)(session, root_of(text[-1]))
    ahead = [plain.expand(tree, torch.zeros(1, 1, dtype=torch.long)).hidden[0, 0]]
    ahead += [MEDUSA.head.at(ahead[0], depth) for depth in range(1, DEPTHS)]

    def state(slot: int) -> Tensor:
        if slot == 0:
            return ahead[0]
        depth = int(tree.depth[0, slot]) + 1
        read = HYDRA.parent.weight @ state(int(tree.parent[0, slot])) + HYDRA.state.weight @ ahead[depth]
        read = read + HYDRA.token.weight @ TARGET.embed_tokens.weight[tree.token[0, slot]] + HYDRA.depth[depth]
        return ahead[depth] + HYDRA.out.weight @ F.silu(read)

    session = DRAFT.session()
    session.observe(torch.tensor([text]), features, torch.tensor([len(text) - 1]))
    for depth in range(-1, DEPTHS - 1):
        slots = (tree.depth[0] == depth).nonzero()[:, 0][None]
        padded = torch.cat([slots, torch.full_like(slots[:, :1], -1)], 1) if depth >= 0 else slots
        rows = session.expand(tree, padded)
        wanted = torch.stack([state(int(slot)) for slot in slots[0]])
        assert_same_network(rows.hidden[0, : len(wanted)], wanted)
        assert_same_network(rows.logits[0, : len(wanted)], wanted @ TARGET.lm_head.weight.T)
    assert len({tuple(row.tolist()) for row in wanted}) == len(wanted) > 3  # each path has a state of its own
    assert session.passes.tolist() == [DEPTHS]


@pytest.mark.slow
def test_greedy_text_is_the_targets_and_replay_its_rounds() -> None:
    plain, _ = run(TARGET, None, Plain(), PROMPTS, new=12)
    for policy in (Eagle2(K=3, levels=3, N=10), C2T(toy_classifier(), beta=0.3, K=3, levels=3)):
        for draft in (DRAFT, NgramDraft(DRAFT)):
            texts, steps = run(TARGET, draft, policy, PROMPTS, new=12)
            assert texts == plain
            assert len(set(torch.cat([step.accepted.length for step in steps[1:]]).tolist())) > 1
            written = write_continuations(
                TARGET, PROMPTS, max_new_tokens=12, beyond=policy.levels + 1, sampling=Sampling(temperature=0.0)
            )
            assert_same(steps, list(replay(draft, policy, written)))
            assert_same(replay(draft, policy, written), visited(replay_all(draft, policy, written)))


def test_heads_in_bf16_read_states_in_another_dtype() -> None:
    """As behind a packed layer, whose states are in float32."""
    draft, policy = HydraDraft(MEDUSA, corrector().bfloat16()), Eagle2(K=3, levels=3, N=10)
    assert run(TARGET, draft, policy, PROMPTS, new=12)[0] == run(TARGET, None, Plain(), PROMPTS, new=12)[0]


@pytest.mark.slow
def test_sampled_trees_keep_the_law() -> None:
    assert_law_is_kept(DRAFT)


def saved(folder: Path, head: HydraHead = HYDRA) -> Path:
    save_head(MEDUSA.head, folder)
    head.save(folder)
    return folder


def test_written_as_read(tmp_path: Path) -> None:
    draft = load_draft(f"{saved(tmp_path)}+hydra+ngrams=8", TARGET)
    assert isinstance(draft.draft, HydraDraft)
    again = draft.draft.hydra.state_dict()
    assert again.keys() == HYDRA.state_dict().keys()
    assert all(again[name].equal(weight.bfloat16().to(again[name])) for name, weight in HYDRA.state_dict().items())


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "no sequential heads can be read"),
        ({"depth": torch.ones(2)}, "no sequential heads can be read"),
        ({"depth": torch.ones(0, 2)}, "it has no depths"),
        ({"depth": torch.ones(2, 2), "out.weight": torch.ones(2, 2)}, "not the sequential heads of a draft"),
    ],
)
def test_wrong_files_are_refused_in_one_line(content: dict[str, Tensor] | None, line: str, tmp_path: Path) -> None:
    path = saved(tmp_path) / hydra.FILE
    path.unlink()
    if content:
        save_file(content, path)
    with pytest.raises(InputError, match=line):
        load_draft(f"{tmp_path}+hydra", TARGET)


def test_weights_that_are_no_numbers_and_other_drafts_are_refused(tmp_path: Path) -> None:
    broken = corrector()
    nn.init.constant_(broken.depth, float("nan"))
    with pytest.raises(InputError, match="not finite"):
        load_draft(f"{saved(tmp_path / 'medusa', broken)}+hydra", TARGET)
    save_head(random_eagle(TARGET).head, tmp_path / "eagle")
    with pytest.raises(InputError, match="corrects the states of a Medusa-style head"):
        load_draft(f"{tmp_path / 'eagle'}+hydra", TARGET)
