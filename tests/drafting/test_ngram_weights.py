"""Trust in n-grams, learned: the evidence is what a session would say, and a fit finds what made the texts."""

import shutil
import time
from pathlib import Path

import pytest
import torch

from c2t.drafting import ngram_weights
from c2t.drafting.library import Library
from c2t.drafting.ngram_weights import LEAST_P, LEVELS, Evidence, evidence, fitted, joined, learn_weights, nats, rises
from c2t.drafting.texts import write
from c2t.errors import InputError
from c2t.kernels.ngrams import Prior, Trust
from c2t.models.loading.load import load_pair, with_ngrams
from c2t.models.wrappers.ngrams import LEARNED, NgramDraft
from c2t.replay.every_position import forks
from c2t.replay.lockstep import read_continuations
from c2t.sampling import Sampling, noise_at
from c2t.sessions.coupled import scaled, with_noise
from c2t.storage import paths as checkpoints
from c2t.tree import Tree
from tests.models.drafts.test_oov_tokens import narrow_draft
from tests.rounding import assert_same_sums

PRIOR = Prior(2, (9.0, 5.0, 4.0, 3.0, 2.0, 2.0, 1.0), Trust(0.8, 0.3, 0.2))


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.6])
@torch.no_grad()
def test_evidence_says_what_a_mixed_draft_would_have_said(temperature: float, narrow: bool) -> None:
    """Of all tokens, and of each fourth and those of the text."""
    tiny, sampling = load_pair("tiny", dtype=torch.float32), Sampling(temperature, seed=3)
    drafter = narrow_draft(tiny, parallel=False) if narrow else tiny.draft
    ids = tiny.tokenizer("def add(a, b):\n    return a + b\n\n" * 4)["input_ids"]
    settings = {"max_new_tokens": 24, "beyond": LEVELS + 1, "sampling": sampling}
    (text,) = read_continuations(tiny.target, [ids[:20]], [ids[20:]], **settings)
    found = joined(list(evidence(drafter, text, 2, sampling, 5)))
    wanted = []
    for (root, mixed), (_, alone) in zip(forks(NgramDraft(drafter), text), forks(drafter, text), strict=True):
        mixed.prior = PRIOR
        noise = noise_at(root, temperature, 3, torch.full_like(root, 5))
        tree, slots = Tree.root(text.tokens[root]), torch.zeros_like(root)[:, None]
        for depth in range(LEVELS):
            right = text.tokens[root + depth + 1][:, None]
            said, chance = (
                with_noise(draft.expand(tree, slots), tree, slots, scaled(noise)).log_probs[:, 0].gather(1, right)
                for draft in (mixed, alone)
            )
            wanted.append(said[tree.log_joint[:, -1].exp() >= LEAST_P, 0])
            tree = tree.extend(tree.children(slots, right[:, None], chance[:, None], torch.zeros_like(chance)))
            slots = torch.full_like(slots, tree.size - 1)
    assert len(found.log_prob) > 20
    assert found.right.sum() > 5
    told = torch.cat(wanted)
    mean = nats(found, torch.tensor(PRIOR.weights), torch.tensor(PRIOR.trust))
    assert_same_sums(mean, -told[told > float("-inf")].mean())


@pytest.mark.slow
def test_a_fit_finds_what_texts_were_made_of() -> None:
    """Two tokens followed at each place; what comes next was drawn by a known prior."""
    torch.manual_seed(0)
    places, kinds = 20_000, len(PRIOR.weights)
    longest = torch.randint(1, kinds + 1, (places, 2, 1))
    times = (torch.arange(kinds) < longest) * torch.randint(1, 6, (places, 2, 1)).float()
    owner, own, back = (
        torch.arange(places).repeat_interleave(2),
        torch.rand(2 * places) * 0.4,
        torch.randint(1, 300, (2 * places,)),
    )
    none = torch.zeros(2 * places, dtype=torch.bool)
    found = Evidence(owner, own.log(), own.log(), times.flatten(0, 1), back, none, times.sum(1), torch.zeros(places))
    rise = rises(found, torch.tensor(PRIOR.weights), torch.tensor(PRIOR.trust))
    chances = torch.cat([own.view(-1, 2) * rise.exp().view(-1, 2), 1 - own.view(-1, 2).sum(1, keepdim=True)], 1)
    drawn = chances.multinomial(1)
    right = (drawn == torch.arange(2)).flatten()
    target = torch.cat([own.view(-1, 2), 1 - own.view(-1, 2).sum(1, keepdim=True)], 1).gather(1, drawn)[:, 0].log()
    prior = fitted(found._replace(right=right, target=target), 2)
    for name, tolerance in (("factor", 0.1), ("distance", 0.05), ("bias", 0.3)):
        assert abs(getattr(prior.trust, name) - getattr(PRIOR.trust, name)) < tolerance
    made, learned = (
        nats(found._replace(right=right, target=target), torch.tensor(one.weights), torch.tensor(one.trust))
        for one in (PRIOR, prior)
    )
    assert learned < made + 1e-3


def test_weights_are_learned_for_one_draft_and_found_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From greedy texts of the target, whose loops the usual weights trust too little."""
    head = shutil.copytree(Path(checkpoints.checkout(), "checkpoints/tiny/draft"), tmp_path / "draft")
    tiny = load_pair("tiny", draft=head, dtype=torch.float32)
    prompts = tiny.tokenizer([f"def add_{name}(a, b):\n    " for name in ("one", "two")])["input_ids"]
    library = Library(tmp_path / "texts", taps=False)
    library.add(write(tiny.target, prompts, 0.0, 120, 0, frozenset()), ["one", "two"], "given", 0.0)
    monkeypatch.setattr(ngram_weights, "LEAST_TOKENS", 200)
    assert learn_weights(head, tiny.target, library.texts, until=0.0) is None  # no time
    prior = learn_weights(head, tiny.target, library.texts, time.monotonic() + 60)
    assert prior is not None
    assert load_pair("tiny", draft=f"{head}+ngrams", dtype=torch.float32).draft.prior == prior
    mixed = with_ngrams(tiny)
    assert mixed.draft.prior == prior
    assert with_ngrams(tiny, 3.0).draft.prior != prior
    (head / LEARNED).write_text('{"shortest": 2, "weights": [1e9], "trust": [1, 0, 0]}')
    with pytest.raises(InputError, match=r"weights.*at most"):
        with_ngrams(tiny)
