"""Options of engines, from tunings and races that are made up."""

import json
import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from c2t.costs.statistics import Statistics
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.policies import Chain, Eagle2, EntropyTree, JointThreshold, Plain
from c2t.study import engine_flags
from c2t.study.autotune import TuneSettings
from c2t.study.batches import Entrant, Group, Run
from c2t.study.engine_flags import can_run, check, lines, schedule
from tests.study.test_autotune import PROMPTS, tuned

CHAINS = [(Chain(1), 2, 1.7), (Chain(4), 5, 2.4)]
MANY = PROMPTS[:4] * 2


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, int], float]], None]:
    """Races in which a token takes what the function says of the number of prompts and the levels."""

    def use(seconds: Callable[[int, int], float]) -> None:
        def race(entrants: Sequence[Entrant], groups: Sequence[Group], settings: TuneSettings) -> Iterator:
            for group in groups:
                for number, entrant in enumerate(entrants):
                    rows = len(group.ids)
                    yield number, Run(rows, rows * seconds(rows, entrant.policy.levels), Statistics())

        monkeypatch.setattr(engine_flags, "race", race)

    return use


def test_sglang_gets_the_best_eagle_tree_and_hears_what_was_left_out(small_pair: Pair) -> None:
    trees = (Eagle2(K=4, levels=3, N=14), 14, 3.0), (JointThreshold(), 20, 3.5), (JointThreshold(0.5), 9, 3.4)
    options, rest = lines("sglang", tuned(*CHAINS, *trees), small_pair, PROMPTS)
    assert options == "sglang: --speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 14"
    assert "2 settings of threshold" in rest
    assert re.findall(r"(\d\.\d\d) times", rest) == ["3.50", "3.00"]


def test_a_chain_is_a_tree_of_topk_1_and_small_trees_have_the_tokens_that_there_are(small_pair: Pair) -> None:
    assert lines("sglang", tuned(*CHAINS), small_pair, PROMPTS)[0].endswith(
        "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    )
    few = lines("sglang", tuned((Eagle2(K=2, levels=1, N=60), 3, 2.0)), small_pair, PROMPTS)
    assert few == [
        "sglang: --speculative-num-steps 1 --speculative-eagle-topk 2 --speculative-num-draft-tokens 3",
        "left out: nothing, sglang can run every policy here",
    ]


def test_vllm_gets_chains_by_batch_size(small_pair: Pair, raced: Callable) -> None:
    """Long chains for one request, short ones for two, none for more."""
    raced(lambda rows, levels: 1.0 + abs(levels - {1: 4, 2: 1}.get(rows, 0)))
    options, rest = lines("vllm", tuned(*CHAINS, (Eagle2(K=4, levels=3, N=14), 14, 9.0)), small_pair, MANY)
    assert json.loads(options.removeprefix("vllm: --speculative-config '").removesuffix("'")) == {
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 1, 4], [2, 2, 1], [3, 8, 0]],
    }
    assert "1 setting of eagle2" in rest


def test_equal_lengths_need_no_schedule_and_none_no_options(small_pair: Pair, raced: Callable) -> None:
    raced(lambda rows, levels: 9.0 - levels)
    found = lines("vllm", tuned(*CHAINS), small_pair, MANY)[0]
    assert found == "vllm: --speculative-config '{\"num_speculative_tokens\": 4}'"
    raced(lambda rows, levels: 1.0 + levels)
    assert "plain decoding is the fastest" in lines("vllm", tuned(*CHAINS), small_pair, MANY)[0]
    assert "plain decoding is the fastest" in lines("sglang", tuned((Chain(1), 2, 0.5)), small_pair, MANY)[0]
    assert schedule(small_pair, [Plain(), Chain(1)], MANY, TuneSettings()) == [(1, len(MANY), 0)]


@pytest.mark.parametrize(
    ("policy", "sglang", "vllm"),
    [
        (Plain(), True, True),
        (Chain(3), True, True),
        (Eagle2(), True, False),
        (Eagle2(N=None), False, False),
        (Eagle2(reranked=False), False, False),
        (Eagle2(expand="confidence"), False, False),
        (EntropyTree(), False, False),
    ],
)
def test_what_engines_can_run(policy: object, sglang: bool, vllm: bool) -> None:
    assert (can_run("sglang", policy), can_run("vllm", policy)) == (sglang, vllm)


def test_policies_that_an_engine_cannot_run_are_refused_before_the_work() -> None:
    check("sglang", [Plain(), Eagle2()])
    for engine, policies, said in (
        ("vllm", [Plain(), Eagle2()], "it runs chains, and --policies has none; add chain:length=2"),
        ("sglang", [JointThreshold()], "it runs EAGLE-2 trees .* add eagle2:N=8,levels=2"),
    ):
        with pytest.raises(InputError, match=said):
            check(engine, policies)
