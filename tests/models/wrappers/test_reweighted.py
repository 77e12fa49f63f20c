"""Drafts conditioned on the path: their distributions against the definitions, and what every draft promises."""

import copy
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from c2t.cli.info import parameters
from c2t.errors import InputError
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.loading.fingerprint import fingerprint
from c2t.models.loading.load import load_draft
from c2t.models.wrappers import path_correction, pmi_bigrams, reweighted
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.models.wrappers.path_correction import PathCorrection
from c2t.models.wrappers.pmi_bigrams import MANY, POWER, PRIOR, UNSEEN, PmiBigrams
from c2t.models.wrappers.reweighted import Correction, ReweightedDraft
from c2t.policies import C2T, Eagle2, Plain
from c2t.protocols import Draft
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from tests.models.drafts.test_medusa import assert_law_is_kept
from tests.replay.test_every_position import assert_same, visited
from tests.rounding import assert_same_network, assert_same_sums
from tests.toys import PROMPTS, VOCABULARY, deep_pairs, random_eagle, root_of, run, toy_classifier

TARGET, DRAFT = deep_pairs()["medusa"]
TEXTS = [[x, *range(0, 48, 3), x, *range(0, 48, 5)] * 9 for x in range(48)]  # enough to change ranks


def counted() -> PmiBigrams:
    return PmiBigrams.counted([torch.tensor(text) for text in TEXTS], VOCABULARY)


def learned() -> PathCorrection:
    """In float64, with weights large enough to change ranks."""
    fit = PathCorrection(TARGET.embed_tokens, torch.arange(VOCABULARY), 3, width=12, rank=8).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in fit.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
        fit.marginal.abs_().add_(0.2)
    return fit.requires_grad_(False)


CORRECTIONS: dict[str, Correction] = {"bigrams": counted(), "fit": learned()}


def by_counts(log_probs: Tensor, best: list[int], before: int, token: int, depth: int, hidden: Tensor) -> Tensor:
    """The definition of the module, with counts made one by one."""
    pairs = [pair for text in TEXTS for pair in itertools.pairwise(text)]
    scores = log_probs.clone()
    for y in best:
        share = (sum(second == y for _, second in pairs) + UNSEEN) / (len(pairs) + UNSEEN * VOCABULARY)
        behind = pairs.count((token, y)) + PRIOR * share
        scores[y] += POWER * math.log(behind / (sum(first == token for first, _ in pairs) + PRIOR) / share)
    return scores.log_softmax(-1)


def by_network(log_probs: Tensor, best: list[int], before: int, token: int, depth: int, hidden: Tensor) -> Tensor:
    """The definition of the module, one token at a time."""
    fit, embed, depth = CORRECTIONS["fit"], TARGET.embed_tokens.weight, min(depth, 2)
    wide = fit.state.weight @ hidden + fit.token.weight @ embed[token] + fit.before.weight @ embed[before]
    query = fit.out.weight @ F.silu(wide + fit.depth[depth]) + fit.out.bias
    rest = math.log(max(1 - float(log_probs[best].exp().sum()), path_correction.LEAST))
    scores = log_probs + (fit.others[depth] - 1) * rest + fit.bias[depth]
    for y in best:
        scores[y] = fit.marginal[depth] * log_probs[y] + query @ fit.vectors[y]
    return scores.log_softmax(-1)


@pytest.mark.parametrize(("name", "definition"), [("bigrams", by_counts), ("fit", by_network)])
@torch.no_grad()
def test_distributions_are_those_of_the_definition(
    name: str, definition: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, drafted, text = ReweightedDraft(DRAFT, CORRECTIONS[name]).session(), [], PROMPTS[1]
    assert isinstance(session, Draft)
    tokens = torch.tensor([text])
    features = TARGET.model(tokens, output_hidden_states=True).hidden_states[-1][:, :-1]
    session.observe(tokens, features, torch.tensor([len(text) - 1]))
    expand, changed = session.draft.expand, 0
    monkeypatch.setattr(session.draft, "expand", lambda *level: drafted.append(expand(*level)) or drafted[-1])
    tree = Eagle2(K=2, levels=3, N=None)(session, root_of(text[-1]))
    for depth in range(3):
        slots = (tree.depth[0] == depth).nonzero()[:, 0][None]
        rows = session.expand(tree, slots)
        marginal = drafted[-1]
        for place, slot in enumerate(slots[0].tolist()):
            best = marginal.top(reweighted.CANDIDATES)[0][0, place].tolist()
            token, before = int(tree.token[0, slot]), int(tree.token[0, tree.parent[0, slot]])
            hidden = marginal.hidden[0, place]
            wanted = definition(marginal.log_probs[0, place], best, before, token, depth + 1, hidden)
            assert_same_network(rows.log_probs[0, place], wanted)
            changed += rows.top(5)[0][0, place].tolist() != best[:5]
            assert rows.top(3)[0][0, place].tolist() == wanted.sort(descending=True, stable=True).indices[:3].tolist()
    assert changed > 3


@pytest.mark.parametrize("name", CORRECTIONS)
def test_the_root_is_left_to_the_draft(name: str) -> None:
    texts = [
        run(TARGET, draft, Eagle2(K=4, levels=1, N=5), PROMPTS, new=12)[1]
        for draft in (DRAFT, ReweightedDraft(DRAFT, CORRECTIONS[name]))
    ]
    for plain, fitted in zip(*texts, strict=True):
        assert plain.tree is None or plain.tree.log_prob.equal(fitted.tree.log_prob)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECTIONS)
def test_greedy_text_is_the_targets_and_replay_its_rounds(name: str) -> None:
    plain, _ = run(TARGET, None, Plain(), PROMPTS, new=12)
    policies = (Eagle2(K=3, levels=3, N=10), C2T(toy_classifier(), beta=0.3, K=3, levels=3))
    for policy in policies:
        for draft in (ReweightedDraft(DRAFT, CORRECTIONS[name]), NgramDraft(ReweightedDraft(DRAFT, CORRECTIONS[name]))):
            texts, steps = run(TARGET, draft, policy, PROMPTS, new=12)
            assert texts == plain
            assert len(set(torch.cat([step.accepted.length for step in steps[1:]]).tolist())) > 1
            assert all(set(step.draft_passes.tolist()) == {1} for step in steps[1:])
            written = write_continuations(
                TARGET, PROMPTS, max_new_tokens=12, beyond=policy.levels + 1, sampling=Sampling(temperature=0.0)
            )
            assert_same(steps, list(replay(draft, policy, written)))
            assert_same(replay(draft, policy, written), visited(replay_all(draft, policy, written)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECTIONS)
def test_sampled_trees_keep_the_law(name: str) -> None:
    assert_law_is_kept(ReweightedDraft(DRAFT, CORRECTIONS[name]))


def saved(folder: Path, layer: bool = True) -> Path:
    """A pair's folder with an EAGLE-1 head and a Medusa-style head, with both fits, that has its layer."""
    save_head(random_eagle(TARGET).head, folder / "draft")
    state = random_eagle(TARGET).head.state_dict()
    head = copy.deepcopy(DRAFT.head)
    head.load_state_dict(state, strict=False)
    head.layer_of = "draft" if layer else None
    save_head(head, folder / "draft_medusa")
    counted().save(folder / "draft_medusa")
    learned().save(folder / "draft_medusa")
    return folder / "draft_medusa"


def test_a_head_that_shares_its_layer_stores_it_once(tmp_path: Path) -> None:
    shared, whole = (saved(tmp_path / name, layer) for name, layer in (("shared", True), ("whole", False)))
    first, second = (load_head(folder, TARGET.embed_tokens).state_dict() for folder in (shared, whole))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
    assert (shared / "model.safetensors").stat().st_size < (whole / "model.safetensors").stat().st_size / 2
    before = fingerprint(shared)
    (tmp_path / "z").symlink_to(shared)
    assert fingerprint(tmp_path / "z") == before
    assert parameters(shared) == sum(weight.numel() for name, weight in first.items() if name != "embed_tokens.weight")
    (shared.parent / "draft" / path_correction.FILE).write_bytes(b"a fit for the other head")
    (shared / pmi_bigrams.FILE).unlink()
    assert fingerprint(shared) == before  # these come in by an ending of the name only
    assert parameters(shared) == parameters(whole)
    save_head(random_eagle(TARGET, seed=9).head, shared.parent / "draft")
    assert fingerprint(shared) != before
    (shared.parent / "draft").rename(shared.parent / "elsewhere")
    with pytest.raises(InputError, match="which is not there; get both"):
        load_head(shared, TARGET.embed_tokens)
    config = shared / "config.json"
    for name in ("../elsewhere", "a/b", "", 3):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_of": name}))
        with pytest.raises(InputError, match="layer_of"):
            load_head(shared, TARGET.embed_tokens)


@torch.no_grad()
def test_fits_are_read_by_the_drafts_name(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    for name, fit in CORRECTIONS.items():
        draft = load_draft(f"{folder}+{name}+ngrams=8", TARGET)
        assert isinstance(draft, NgramDraft)
        assert isinstance(draft.draft, ReweightedDraft)
        assert draft.prior_weight == 8
        again = draft.draft.correction
        assert type(again) is type(fit)
        pairs = torch.arange(VOCABULARY).expand(1, 1, -1)
        path = reweighted.Path(*torch.tensor([[[9]], [[5]], [[1]]]), torch.ones(1, 1, 32, dtype=torch.float64))
        scores = [read(path, pairs, torch.full(pairs.shape, -3.0)) for read in (fit, again)]
        assert_same_sums(*(score[0].bfloat16() for score in scores), 32)  # stored in bfloat16


def counts_of(
    followers: list[int],
    counts: list[int],
    many: Sequence[int] = (),
    behind: int = 2,
    vocabulary: int = VOCABULARY,
) -> dict[str, Tensor]:
    """A table of these followers of token 7, which says that it has `behind` ones."""
    different = behind * nn.functional.one_hot(torch.tensor(7), vocabulary)
    columns = {"followers": followers, "counts": counts, "many": many}
    return {"different": different} | {name: torch.tensor(column).long() for name, column in columns.items()}


@pytest.mark.parametrize(
    ("ending", "file", "content", "line"),
    [
        ("+bigrams", pmi_bigrams.FILE, None, "no counts of pairs can be read"),
        ("+bigrams", pmi_bigrams.FILE, counts_of([5, 4], [1, 1]), "not counts of"),  # not in rising order
        ("+bigrams", pmi_bigrams.FILE, counts_of([4, 5], [1, 0]), "not counts of"),
        ("+bigrams", pmi_bigrams.FILE, counts_of([4, 5], [1]), "not counts of"),
        ("+bigrams", pmi_bigrams.FILE, counts_of([4, 99], [1, 1]), "not counts of"),
        ("+bigrams", pmi_bigrams.FILE, counts_of([4, 5], [1, MANY]), "not counts of"),
        (
            "+bigrams",
            pmi_bigrams.FILE,
            counts_of([4, 5], [1, MANY], [MANY - 1]),
            "not counts of",
        ),
        ("+bigrams", pmi_bigrams.FILE, counts_of([4, 5], [1, MANY + 1]), "not counts of"),
        ("+bigrams", pmi_bigrams.FILE, counts_of([4, 5], [1, 1], behind=3), "not counts of"),
        ("+bigrams", pmi_bigrams.FILE, counts_of([4, 5], [1, 1], vocabulary=VOCABULARY + 1), "not counts of"),
        ("+fit", path_correction.FILE, None, "no fit can be read"),
        ("+fit", path_correction.FILE, {"depth": torch.ones(2), "vectors": torch.ones(2, 2)}, "no fit can be read"),
        (
            "+fit",
            path_correction.FILE,
            {"depth": torch.ones(2, 2), "vectors": torch.ones(2, 2)},
            "not the fit of a draft",
        ),
    ],
)
def test_wrong_files_are_refused_in_one_line(
    ending: str, file: str, content: dict[str, Tensor] | None, line: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path)
    (folder / file).unlink()
    if content:
        save_file(content, folder / file)
    with pytest.raises(InputError, match=line):
        load_draft(f"{folder}{ending}", TARGET)


def test_a_fit_needs_depths_and_states_of_its_width(tmp_path: Path) -> None:
    folder, fit = saved(tmp_path), learned()
    fit.depth = nn.Parameter(torch.zeros(0, 12))
    fit.save(folder)
    with pytest.raises(InputError, match="it has no depths"):
        load_draft(f"{folder}+fit", TARGET)
    with pytest.raises(InputError, match="no pairs of tokens to count"):
        PmiBigrams.counted([torch.tensor([4])], VOCABULARY)


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    folder, fit = saved(tmp_path), learned()
    nn.init.constant_(fit.bias, float("nan"))
    fit.save(folder)
    with pytest.raises(InputError, match="not finite"):
        load_draft(f"{folder}+fit", TARGET)
