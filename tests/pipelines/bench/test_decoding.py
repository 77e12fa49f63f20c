"""The comparison of speeds: all contenders write the same text, settings are chosen on other prompts, and ratios are
those of the clock."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from c2t.costs.statistics import Statistics
from c2t.errors import InputError
from c2t.kernels.decoder_layers import Kind, works
from c2t.policies import Plain
from c2t.policies.spec import describe
from c2t.replay.prompts import Prompt
from c2t.sampling import Sampling
from pipelines.bench import decoding
from pipelines.bench.__main__ import app
from pipelines.bench.contenders import ROUNDED, Contenders, Task, Written
from pipelines.bench.decoding import (
    CHOSEN_ON,
    Batch,
    Comparison,
    Result,
    calls,
    compare,
    divided,
    figures,
    in_fewer_bits,
)
from pipelines.bench.sizes import Size
from tests.rounding import figure

TREE = "eagle2:N=6,levels=2,K=3"
TASK = Task(4, Sampling(), frozenset())


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run beside each other; test_idle.py has the refusal."""
    monkeypatch.setattr(decoding, "check_idle", lambda: None)


def lines(out: Path, *more: str) -> dict[str, dict]:
    """The figures of a run on the small pair, by contender."""
    arguments = ["decoding", "--pair", "tiny", "--policy", TREE, "--new-tokens", "12", "--json", str(out), *more]
    # Any may be installed, and takes its time.
    arguments += ["--skip", "upstream EAGLE-1", "--skip", "llama.cpp", "--skip", "OpenVINO"]
    arguments += ["--skip", "transformers, torch.compile"]  # compiles for a minute
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["configuration"]["policy"].partition(":")[0] for line in found} == {"eagle2"}
    assert {line["figures"]["set"] for line in found} == {"code"}
    return {line["figures"]["contender"]: line["figures"] for line in found}


def test_all_write_the_same_text(home: Path, tmp_path: Path) -> None:
    found = lines(tmp_path / "lines.jsonl", "--prompts", "3")
    loops = ("bfloat16", "float32", "prompt lookup")
    assert sorted(found) == ["c2t, plain", "c2t, tree", *(f"transformers, {name}" for name in loops)]
    assert {found["c2t, tree"]["equal_to_plain"], found["transformers, float32"]["equal_to_plain"]} == {1.0}
    assert found["c2t, tree"]["equal_to_float32"] == 1.0
    assert found["c2t, tree"]["new_tokens"] == found["c2t, plain"]["new_tokens"] <= 3 * 12
    assert found["c2t, plain"]["against_plain"] == figure([1.0, 1.0, 1.0])
    assert found["c2t, tree"]["tau"] > 0 == found["c2t, plain"]["tau"]
    assert found["c2t, tree"]["rounds"] < found["c2t, plain"]["rounds"]
    assert "tokens" in found["transformers, prompt lookup"]["setting"]
    assert all(0 < row["first_token_seconds"] < row["seconds"] for row in found.values())
    bits = {name: row.get("bits_per_weight") for name, row in found.items()}
    assert bits["c2t, plain"] == bits["c2t, tree"] > 0
    assert bits["transformers, float32"] is None
    assert found["c2t, plain"]["gb_per_second"] > 0


def test_in_a_batch_and_with_sampling(home: Path, tmp_path: Path) -> None:
    batched = ["--prompts", "3", "--batch", "2", "--temperature", "1"]
    found = lines(tmp_path / "lines.jsonl", *batched)
    assert sorted(found) == ["c2t, plain", "c2t, tree", "transformers, bfloat16", "transformers, float32"]
    assert found["c2t, tree"]["equal_to_plain"] == 1.0  # the same random numbers
    assert found["transformers, float32"]["equal_to_plain"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompts", "8"], "code has 8 prompts"),
        (["--sets", "mbpp"], "'mbpp' is none of the sets: gsm8k, humaneval, mt_bench, functions, "),
        (["--sets", "functions,gsm8k"], "--data is missing: the folder that gsm8k/question.jsonl"),
        (["--sets", "languages", "--prompts", "999"], "languages has 100 prompts"),
        (
            ["--skip", "early exit"],
            "--skip 'early exit' is none of: c2t in int8; c2t in int4; transformers, prompt lookup; ",
        ),
        (["--skip", "transformers, bfloat16", "--batch", "2"], "in a batch it may be the faster loop"),
    ],
)
def test_what_cannot_be_compared_is_refused(home: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["decoding", "--pair", "tiny", "--policy", TREE, *words])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


class Recorded:
    """Contender that needs a fixed time for a token and notes what it was asked for."""

    size = None

    def __init__(self, name: str, setting: str, seconds: float):
        self.name, self.setting, self.seconds = name, setting, seconds
        self.asked: list[int] = []

    def write(self, prompts, numbers, task: Task) -> Written:
        self.asked += numbers
        tokens = [[7] * task.max_new_tokens for _ in prompts]
        return Written(tokens, self.seconds, self.seconds * task.max_new_tokens, Statistics())


JUDGED, OTHERS = [Batch([[1]], [0]), Batch([[1]], [1])], [Batch([[1]], [2])]


def test_settings_are_chosen_on_prompts_that_are_not_judged() -> None:
    plain = Recorded("c2t, plain", "", 1.0)
    loops = [Recorded("transformers, float32", "", 2.0), Recorded("transformers, bfloat16", "", 4.0)]
    rivals = [Recorded("lookup", "slow", 3.0), Recorded("lookup", "fast", 0.5)]
    field = Contenders([plain], loops, {"lookup": rivals})
    told: list[None] = []
    found = compare(field, JUDGED, OTHERS, TASK, lambda: told.append(None))
    assert len(told) == calls(field, len(JUDGED))
    assert found.results["lookup"].settings == ["fast"]
    assert found.base is found.results["transformers, float32"]
    assert set(rivals[0].asked) == {2}
    assert sorted(set(rivals[1].asked)) == [0, 1, 2]
    assert set(plain.asked[:1]) == {2}  # the warm-up


def test_ways_can_be_left_out(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    found = lines(out, "--prompts", "1", "--skip", "transformers, prompt lookup", "--skip", "transformers, bfloat16")
    assert sorted(found) == ["c2t, plain", "c2t, tree", "transformers, float32"]
    skipped = [
        word for name in ("prompt lookup", "bfloat16", "float32") for word in ("--skip", f"transformers, {name}")
    ]
    alone = lines(tmp_path / "alone.jsonl", "--prompts", "1", *skipped)
    assert sorted(alone) == ["c2t, plain", "c2t, tree"]
    assert alone["c2t, tree"]["equal_to_plain"] == 1.0
    assert "against_transformers" not in alone["c2t, tree"]
    assert alone["c2t, tree"]["equal_to_float32"] is None


def test_a_pair_without_prompts_of_its_own_is_judged_on_a_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Someone's model has none; a set that is too small is still refused in one line."""
    monkeypatch.setattr(decoding.checkpoints, "prompts_of", lambda *_: [])
    done = CliRunner().invoke(app, ["decoding", "--pair", "tiny", "--sets", "languages", "--prompts", "999"])
    assert str(done.exception).startswith("languages has 100 prompts")


def test_a_set_without_other_prompts_is_judged_whole() -> None:
    of_set, of_pair = ([Prompt(number, name, [f"{name} {number}"], name) for number in range(4)] for name in "ab")
    whole = divided("a", of_set, 4, [*of_set[:1], *of_pair], 1)
    assert whole == (of_set, of_pair[:CHOSEN_ON])
    judged, others = divided("a", of_set, 2, of_pair, 1)
    assert (judged, others) == (of_set[:2], of_set[2:])


@pytest.mark.skipif(Kind.INT8 not in works(), reason="this processor has no products of bytes")
@pytest.mark.parametrize("kind", ROUNDED)
def test_a_rounded_target_competes_where_there_is_one(kind: str, capsys: pytest.CaptureFixture) -> None:
    plain, tree = in_fewer_bits(kind, "tiny", None, TREE, 1, 0.0)
    assert (plain.name, tree.name) == (f"{kind}, plain", f"{kind}, tree")
    assert plain.pair.target.rounded
    assert isinstance(plain.policy, Plain)
    assert tree.setting == describe(tree.policy, brief=True)
    assert in_fewer_bits(kind, "tiny", "lm", "no policy", 1, 0.0) == []
    assert f"{kind} is left out: " in capsys.readouterr().err


def result(tokens: list[int], first: float, seconds: float) -> Result:
    return Result([], [Written([tokens], first, seconds, Statistics())] * 3)


def test_texts_in_int8_are_compared_with_plain_decoding_in_int8() -> None:
    one, other = [1, 1], [2, 2]
    results = {"c2t, plain": result(one, 0.5, 4.0), "c2t in int8, plain": result(other, 0.5, 2.0)}
    results |= {"c2t in int8, tree": result(other, 0.5, 1.0), "transformers, float32": result(one, 0.5, 8.0)}
    rows = {row["contender"]: row for row in figures(Comparison(results, results["transformers, float32"]), False)}
    assert [row["equal_to_plain"] for row in rows.values()] == [1.0, 1.0, 1.0, 1.0]
    assert [row["equal_to_float32"] for row in rows.values()] == [1.0, 0.0, 0.0, 1.0]
    assert rows["c2t in int8, tree"]["against_plain"] == figure((2, 2, 2))
    assert rows["c2t in int8, tree"]["against_transformers"] == figure((8, 8, 8))


def test_llama_cpp_is_compared_with_its_own_plain_decoding() -> None:
    size, one, other = Size(10**9, 10**9), [1, 1, 1, 1], [2, 2, 2, 2]

    def program(first: float, seconds: float, rounds: int) -> Result:
        return Result([], [Written([other], first, seconds, rounds=rounds)] * 3, size)

    results = {"c2t, plain": result(one, 0.5, 4.0), "transformers, float32": result(one, 0.5, 8.0)}
    results |= {"llama.cpp, Q8_0": program(1.0, 4.0, 3), "llama.cpp, Q8_0, prompt lookup": program(1.0, 2.0, 2)}
    rows = {row["contender"]: row for row in figures(Comparison(results, results["transformers, float32"]), False)}
    plain, lookup = (rows[name] for name in rows if name.startswith("llama.cpp"))
    assert (plain["equal_to_plain"], lookup["equal_to_plain"]) == (1.0, 1.0)
    assert (plain["equal_to_float32"], lookup["equal_to_float32"]) == (None, None)
    assert lookup["against_plain"] == lookup["against_own"] == figure((2, 2, 2))
    assert lookup["decoding_against_own"] == figure((3, 3, 3))
    assert rows["c2t, plain"]["against"] == {"llama.cpp, Q8_0": figure((1, 1, 1))}
    assert lookup["against"] == {"llama.cpp, Q8_0": figure((2, 2, 2))}
    assert (plain["bits_per_weight"], plain["gb_per_second"]) == (8.0, 1.0)  # 3 times 1 GB in 3 seconds
    assert lookup["gb_per_second"] == 2.0
    assert "against_own" not in rows["c2t, plain"]
    assert "gb_per_second" not in rows["c2t, plain"]
    del results["llama.cpp, Q8_0"]
    *_, alone = figures(Comparison(results, results["transformers, float32"]), False)
    assert alone["equal_to_plain"] is None


def test_ratios_are_those_of_tokens_per_second() -> None:
    seconds = {"c2t, plain": 5.0, "c2t, tree": 2.0, "transformers, float32": 9.0}
    results = {name: result([1, 2, 3, 4, 5], 1.0, spent) for name, spent in seconds.items()}
    _, row, _ = figures(Comparison(results, results["transformers, float32"]), sampled=False)
    assert row["tokens_per_second"] == 2.5
    assert row["against_plain"] == figure((2.5, 2.5, 2.5))
    assert row["decoding_against_plain"] == figure((4.0, 4.0, 4.0))  # 4 tokens in 1 second, in 4 seconds
    assert row["against_transformers"] == figure((4.5, 4.5, 4.5))
    once = Comparison(results, results["c2t, plain"])
    both = once + once
    assert len(both.results["c2t, tree"].written) == 6
