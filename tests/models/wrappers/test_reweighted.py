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
from c2t.policies import C2T, Eagle2
from c2t.protocols import Draft
from tests.models.drafts.test_medusa import assert_greedy_text_and_replay, assert_law_is_kept
from tests.rounding import assert_same_network, assert_same_sums
from tests.toys import PROMPTS, VOCABULARY, deep_pairs, observed, random_eagle, root_of, run, toy_classifier

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
    session, _ = observed(ReweightedDraft(DRAFT, CORRECTIONS[name]), TARGET, PROMPTS[1])
    assert isinstance(session, Draft)
    drafted, expand, changed = [], session.draft.expand, 0
    monkeypatch.setattr(session.draft, "expand", lambda *level: drafted.append(expand(*level)) or drafted[-1])
    tree = Eagle2(K=2, levels=3, N=None)(session, root_of(PROMPTS[1][-1]))
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
    for policy in (Eagle2(K=3, levels=3, N=10), C2T(toy_classifier(), beta=0.3, K=3, levels=3)):
        assert_greedy_text_and_replay(TARGET, ReweightedDraft(DRAFT, CORRECTIONS[name]), policy)


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


def counts_of(followers: list[int], counts: list[int], many: Sequence[int] = (), behind: int = 2, of: int = VOCABULARY):
    """A table of these followers of token 7, which says that it has `behind` ones."""
    columns = {"followers": followers, "counts": counts, "many": many}
    different = behind * nn.functional.one_hot(torch.tensor(7), of)
    return {"different": different} | {name: torch.tensor(column).long() for name, column in columns.items()}


@pytest.mark.parametrize(
    "content",
    [
        counts_of([5, 4], [1, 1]),  # not in rising order
        counts_of([4, 5], [1, 0]),
        counts_of([4, 5], [1]),
        counts_of([4, 99], [1, 1]),
        counts_of([4, 5], [1, MANY]),
        counts_of([4, 5], [1, MANY], [MANY - 1]),
        counts_of([4, 5], [1, MANY + 1]),
        counts_of([4, 5], [1, 1], behind=3),
        counts_of([4, 5], [1, 1], of=VOCABULARY + 1),
    ],
)
def test_wrong_counts_are_refused_in_one_line(content: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(content, saved(tmp_path) / pmi_bigrams.FILE)
    with pytest.raises(InputError, match="not counts of"):
        load_draft(f"{tmp_path / 'draft_medusa'}+bigrams", TARGET)


def test_wrong_fits_are_refused_in_one_line(tmp_path: Path) -> None:
    folder, fit = saved(tmp_path), learned()
    few, square = {"depth": torch.ones(2), "vectors": torch.ones(2, 2)}, {"depth": torch.ones(2, 2)}
    for content, line in ((few, "no fit can be read"), (few | square, "not the fit of a draft")):
        save_file(content, folder / path_correction.FILE)
        with pytest.raises(InputError, match=line):
            load_draft(f"{folder}+fit", TARGET)
    for name, value, line in (
        ("bias", torch.full_like(fit.bias, math.nan), "not finite"),
        ("depth", torch.zeros(0, 12), "no depths"),
    ):
        wrong = learned()
        setattr(wrong, name, nn.Parameter(value))
        wrong.save(folder)
        with pytest.raises(InputError, match=line):
            load_draft(f"{folder}+fit", TARGET)


def test_without_files_or_pairs_there_is_no_correction(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    for ending, file, line in (
        ("bigrams", pmi_bigrams.FILE, "no counts of pairs can be read"),
        ("fit", path_correction.FILE, "no fit can be read"),
    ):
        (folder / file).unlink()
        with pytest.raises(InputError, match=line):
            load_draft(f"{folder}+{ending}", TARGET)
    with pytest.raises(InputError, match="no pairs of tokens to count"):
        PmiBigrams.counted([torch.tensor([4])], VOCABULARY)
