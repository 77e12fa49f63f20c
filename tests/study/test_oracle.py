"""The oracle's trees against brute force, its probabilities against the target's own, and what it bounds."""

from itertools import combinations

import pytest
import torch

from c2t.errors import InputError
from c2t.policies.eagle2 import Eagle2
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.study.oracle import Oracle, OracleDraft
from tests.rounding import figure
from tests.toys import PROMPTS, path_of, root_of, toy_drafts, toy_target

K, LEVELS = 3, 3


def judged(temperature: float):
    """A session that has observed the prompts, and the roots after them."""
    texts = write_continuations(toy_target(), PROMPTS, max_new_tokens=4, beyond=1, sampling=Sampling())
    session = OracleDraft(toy_drafts()["perturbed"], toy_target(), temperature).session()
    count = torch.tensor(list(map(len, PROMPTS)))
    width = int(count.max())
    tokens, features = torch.zeros(len(PROMPTS), width + 1, dtype=torch.long), []
    for row, text in enumerate(texts):
        tokens[row, : text.prompt + 1] = text.tokens[: text.prompt + 1]
        features.append(torch.nn.functional.pad(text.features[: text.prompt], (0, 0, 0, width - text.prompt)))
    session.observe(tokens, torch.stack(features), count)
    roots = [int(text.tokens[text.prompt]) for text in texts]
    return session, roots


def by_hand(prefix: list[int], path: list[int], temperature: float) -> float:
    """Product of the target's probabilities along a path, one plain forward for each token."""
    probability = 1.0
    for place, token in enumerate(path):
        logits = toy_target().model(torch.tensor([prefix + path[:place]])).logits[0, -1]
        law = (logits / temperature).softmax(-1) if temperature else (logits == logits.max()).double()
        probability *= float(law[token])
    return probability


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@torch.no_grad()
def test_path_probabilities_are_the_targets(temperature: float) -> None:
    session, roots = judged(temperature)
    full = Eagle2(K, LEVELS, N=None)(session, root_of(*roots))
    found = session.path_probs(full)
    for row, prompt in enumerate(PROMPTS[:3]):
        expected = [by_hand([*prompt, roots[row]], path_of(full, row, slot), temperature) for slot in range(full.size)]
        assert found[row].tolist() == figure(expected)


def connected(parent: list[int], chosen: set[int]) -> bool:
    return all(parent[slot] == 0 or parent[slot] in chosen for slot in chosen)


@pytest.mark.parametrize("threshold", [0.3, 0.05])
@torch.no_grad()
def test_no_subtree_of_its_size_has_a_larger_sum(threshold: float) -> None:
    """Against all subtrees of the full tree of two levels."""
    session, roots = judged(0.7)
    full = Eagle2(2, 3, N=None)(session, root_of(*roots))
    probs = session.path_probs(full)
    session, roots = judged(0.7)
    tree = Oracle(threshold, K=2, levels=3)(session, root_of(*roots))
    sizes = (tree.sizes - 1).tolist()
    assert max(sizes) > 1
    for row, size in enumerate(sizes):
        parent, own = full.parent[row].tolist(), probs[row].tolist()
        subsets = combinations(range(1, full.size), size)
        best = max(sum(own[s] for s in chosen) for chosen in subsets if connected(parent, set(chosen)))
        paths = {tuple(path_of(full, row, slot)): own[slot] for slot in range(1, full.size)}
        kept = [tuple(path_of(tree, row, slot)) for slot in range(1, tree.size) if tree.alive[row, slot]]
        assert sum(paths[path] for path in kept) == figure(best)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_it_beats_the_drafts_own_ranking(temperature: float) -> None:
    """Over whole texts: at least EAGLE-2's tau with fewer tokens; greedy, every token but the root is accepted."""
    sampling = Sampling(temperature, seed=1)
    target, draft = toy_target(), toy_drafts()["perturbed"]
    texts = write_continuations(target, PROMPTS, max_new_tokens=24, beyond=6, sampling=sampling)

    def count(drafter, policy) -> tuple[float, float]:
        steps = [s for s in replay(drafter, policy, texts, seed=1) if s.tree is not None]
        rounds = sum(len(s.rows) for s in steps)
        return sum(int(s.accepted.length.sum()) for s in steps) / rounds, sum(
            int(s.tree.sizes.sum()) for s in steps
        ) / rounds

    tau, gamma = count(OracleDraft(draft, target, temperature), Oracle(0.05, K=4, levels=4))
    ranked_tau, ranked_gamma = count(draft, Eagle2(4, 4, N=12))
    assert tau > 0
    assert gamma / (tau + 1) < ranked_gamma / (ranked_tau + 1)
    if temperature == 0:
        assert gamma == figure(tau + 1)


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="threshold = 0"):
        Oracle(0.0)
