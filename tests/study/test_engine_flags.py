"""Options of engines, from tunings whose rounds and costs are made up."""

import json
import re

import pytest

from c2t.costs.statistics import Totals
from c2t.errors import InputError
from c2t.policies import Chain, Eagle2, EntropyTree, JointThreshold, Plain
from c2t.policies.round_costs import Curve, Overhead, RoundCosts
from c2t.study.autotune import Candidate, TuneSettings, Tuning, predict
from c2t.study.engine_flags import can_run, check, lines, schedule
from c2t.study.rounds import Round

PROMPTS = 8
CHEAP, DEAR = Curve((1, 1000), (1.0, 1.0)), Curve((1, 1000), (1.0, 1000.0))


def candidate(policy: object, tokens: int, new: float) -> Candidate:
    """A round of each prompt, of so many tokens verified and won."""
    rounds = [[Round(1, tokens, (1,) * policy.levels, new - 1, new)]] * PROMPTS
    return Candidate(policy, rounds, Totals(0, 0, 0, 0), 0.0)


def tuning(verify: Curve, *candidates: Candidate) -> Tuning:
    costs = RoundCosts(verify, Curve((1,), (0.01,)), Overhead(), None)
    rows = [each._replace(predicted=predict(costs, each.rounds, 1)) for each in (candidate(Plain(), 1, 1), *candidates)]
    return Tuning(TuneSettings(), costs, rows)


CHAINS = [candidate(Chain(1), 2, 1.7), candidate(Chain(4), 5, 2.4)]


def test_sglang_gets_the_best_eagle_tree_and_hears_what_was_left_out() -> None:
    tree = candidate(Eagle2(K=4, levels=3, N=14), 14, 3.0)
    found = tuning(CHEAP, *CHAINS, tree, candidate(JointThreshold(), 20, 3.5), candidate(JointThreshold(0.5), 9, 3.4))
    options, rest = lines("sglang", found)
    assert options == "sglang: --speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 14"
    assert "2 settings of threshold" in rest
    assert [int(speed) for speed in re.findall(r"at (\d+)", rest)] == [3, 3]


def test_a_chain_is_a_tree_of_topk_1_and_small_trees_have_the_tokens_that_there_are() -> None:
    assert lines("sglang", tuning(CHEAP, *CHAINS))[0].endswith(
        "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    )
    few = lines("sglang", tuning(CHEAP, candidate(Eagle2(K=2, levels=1, N=60), 3, 2.0)))
    assert few == [
        "sglang: --speculative-num-steps 1 --speculative-eagle-topk 2 --speculative-num-draft-tokens 3",
        "left out: nothing, sglang can run every policy here",
    ]


def test_vllm_gets_chains_by_batch_size() -> None:
    """Up to 5 tokens in all are free, then each costs as much as the first five."""
    bend = Curve((1, 5, 1000), (1.0, 1.0, 996.0))
    found = tuning(bend, *CHAINS, candidate(Eagle2(K=4, levels=3, N=14), 14, 9.0))
    options, rest = lines("vllm", found)
    config = json.loads(options.removeprefix("vllm: --speculative-config '").removesuffix("'"))
    # 1 request: 2.4 / 1.04 by 5 tokens. 2: 3.4 / 1.01 by 4 tokens, 4.8 / 6.04 by 10. 4: 4 / 1 plainly, 6.8 / 4.01.
    assert config == {
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 1, 4], [2, 2, 1], [3, 8, 0]],
    }
    assert "1 setting of eagle2" in rest


def test_equal_lengths_need_no_schedule_and_none_no_options() -> None:
    assert lines("vllm", tuning(CHEAP, *CHAINS))[0] == "vllm: --speculative-config '{\"num_speculative_tokens\": 4}'"
    assert "plain decoding is predicted" in lines("vllm", tuning(DEAR, *CHAINS))[0]
    assert "plain decoding is predicted" in lines("sglang", tuning(DEAR, *CHAINS))[0]


def test_a_schedule_covers_every_size_once() -> None:
    found = schedule(tuning(DEAR).costs, tuning(DEAR, *CHAINS).rows)
    assert found == [(1, PROMPTS, 0)]


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
