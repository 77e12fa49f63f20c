"""Every position of a text at once: the rounds on the path of a live run are the live run's."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from c2t.decoding import Step
from c2t.policies import C2T, DySpec, Eagle2, EntropyTree, JointThreshold
from c2t.protocols import Policy
from c2t.replay import every_position as positions
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.verification.target_verifier import generate
from tests import toys
from tests.rounding import assert_same_column
from tests.toys import deep_pairs, toy_classifier

POLICIES: dict[str, Policy] = {
    "eagle2": Eagle2(K=4, levels=3, N=10, M=20),
    "c2t": C2T(toy_classifier(), beta=0.25, K=4, W=4, levels=4),
    "threshold": JointThreshold(0.03, K=4, W=5, levels=4),
    "entropy": EntropyTree("published", 4, max_nodes=40),
    "dyspec": DySpec(N=7, K=3, passes=3),
}
SAMPLINGS = {"T=0": Sampling(seed=6), "T=0.8": Sampling(temperature=0.8, repetition_penalty=1.2, seed=3)}
PROMPTS = toys.PROMPTS[1:]
SEQUENCES = [4, 0, 9]
NEW = 7


Rounds = dict[int, list[dict[str, Tensor]]]  # of each text


def rounds(steps: Iterable[Step]) -> Rounds:
    """Each text's rounds in order, without what fills up the rows of a batch."""
    found: dict[int, list[dict[str, Tensor]]] = {}
    for step in steps:
        for row, text in enumerate(step.rows.tolist()):
            one = {name: getattr(step, name)[row] for name in ("position", "count", "draft_passes")}
            one["tokens"] = step.tokens[row, : step.count[row]]
            if step.tree is not None:
                alive = step.tree.alive[row]
                assert alive[: alive.sum()].all()
                one |= {name: column[row, alive] for name, column in step.tree.columns().items()}
                one |= {"capped": step.tree.capped[row], "bonus": step.accepted.bonus[row]}
                one["path"] = step.accepted.slots[row][step.accepted.slots[row] >= 0]
            found.setdefault(text, []).append(one)
    return found


def visited(steps: Iterable[Step]) -> Rounds:
    """Of all positions' rounds those that a live run goes through: position <- position + accepted + 1."""
    found = rounds(steps)
    for text, (prefill, *every) in found.items():
        position, path = int(prefill["position"]), [prefill]
        for one in every:
            if one["position"] == position:
                path.append(one)
                position += int(one["count"])
        found[text] = path
    return found


def same(one: object, other: object, name: str) -> None:
    if isinstance(one, torch.Tensor):
        assert_same_column(one, other, name)
    else:
        assert one == other, name


def assert_same(one: Iterable[Step] | Rounds, other: Iterable[Step] | Rounds) -> None:
    left, right = (each if isinstance(each, dict) else rounds(each) for each in (one, other))
    assert left.keys() == right.keys()
    for text in left:
        assert len(left[text]) == len(right[text])
        for a, b in zip(left[text], right[text], strict=True):
            assert a.keys() == b.keys()
            for name in a:
                same(a[name], b[name], name)


@pytest.mark.parametrize(
    ("draft", "sampling"),
    [("eagle", "T=0"), ("eagle", "T=0.8"), ("eagle3", "T=0.8"), ("mtp", "T=0"), ("medusa", "T=0.8"), ("lm", "T=0.8")],
)
@pytest.mark.slow
def test_the_live_run_is_a_path_through_all_positions(
    draft: str, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "CHUNK", 3)  # the texts are longer than one chunk
    target, drafter = deep_pairs()[draft]
    chosen = SAMPLINGS[sampling]
    texts = write_continuations(target, PROMPTS, max_new_tokens=NEW, beyond=9, sampling=chosen, sequences=SEQUENCES)
    stream = {"seed": chosen.seed, "sequences": SEQUENCES, "temperature": chosen.temperature}
    accepted = 0
    for policy in POLICIES.values():
        settings = {"max_new_tokens": NEW, "sampling": chosen, "sequences": SEQUENCES, "rule": "target-only"}
        live = list(generate(target, drafter, policy, PROMPTS, **settings))
        every = list(replay_all(drafter, policy, texts, **stream))
        assert_same(live, visited(every))
        assert_same(replay(drafter, policy, texts, **stream), live)
        accepted += sum(int((step.count - 1).sum()) for step in every)
        for row, text in enumerate(texts):
            places = [place for step in every[1:] for place in step.position[step.rows == row].tolist()]
            assert places == list(range(text.prompt, text.end - 1))
    assert accepted > 0 or draft in ("eagle3", "mtp", "medusa")  # heads of random weights: by luck only


def test_a_round_anywhere_is_the_first_round_after_that_prefix() -> None:
    """Positions that no live run of these prompts visits, too: a prompt that ends there does."""
    target, drafter = deep_pairs()["lm"]
    policy = Eagle2(K=3, levels=4, N=12, M=10)
    texts = write_continuations(target, PROMPTS[:1], max_new_tokens=NEW, beyond=5, sampling=Sampling())
    steps = list(replay_all(drafter, policy, texts))
    assert all(step.tokens.is_inference() for step in steps[1:])
    [every] = rounds(steps).values()
    for one in every[1:]:
        prefix = texts[0].tokens[: one["position"]].tolist()
        _, first = rounds(generate(target, drafter, policy, [prefix], max_new_tokens=2, sampling=Sampling()))[0][:2]
        for name, value in first.items():
            same(one[name], value, name)


def test_texts_without_a_round_have_no_steps() -> None:
    target, drafter = deep_pairs()["eagle"]
    texts = write_continuations(target, PROMPTS, max_new_tokens=1, beyond=4, sampling=Sampling())
    [prefill] = replay_all(drafter, POLICIES["eagle2"], texts)
    assert prefill.tokens[:, 0].tolist() == [text.tokens[text.prompt] for text in texts]
