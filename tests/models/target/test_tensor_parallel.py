"""A target split over two processes decodes as one process does: the same texts, and the same trees."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from c2t.cli import shared
from c2t.cli.app import app
from c2t.decoding import Step
from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.models.target.tensor_parallel import FirstProcessTrees, distributed_config
from c2t.policies.spec import parse
from c2t.sampling import Sampling
from c2t.study import autotune_cache
from c2t.verification.target_verifier import generate
from tests.small_pair import TURNS

ROOT = Path(__file__).parents[3]
# One that ranks its candidates, and one that samples them, whose trees carry distributions.
RUNS = (("eagle2:K=3,levels=3,N=9", 0.0), ("dyspec:N=8", 0.8), ("mcsd:config=2x2", 0.8))


def rounds(pair: Pair, split: bool = False) -> list:
    """Return what every round of all runs has drafted and accepted."""
    ids = [pair.tokenizer(turn).input_ids for turn in TURNS[:2]]
    found = []
    for spec, temperature in RUNS:
        policy = parse(spec, None, None)
        sampling = Sampling(temperature, seed=3)
        trees = FirstProcessTrees(policy) if split else policy
        steps = generate(pair.target, pair.draft, trees, ids, max_new_tokens=12, sampling=sampling)
        found.append([seen(step) for step in steps])
    return found


def seen(step: Step) -> list:
    """Return a round's tree and its new tokens."""
    tree = [] if step.tree is None else [step.tree.token.tolist(), step.tree.parent.tolist(), step.tree.alive.tolist()]
    return [step.by_row(), tree]


CODE = """if True:
    import json, sys, torch
    from c2t.models.loading.load import load_pair
    from c2t.models.target.tensor_parallel import rank_and_world
    from tests.models.target.test_tensor_parallel import rounds
    folder, out = sys.argv[1:]
    pair = load_pair(target=f"{folder}/target", draft=f"{folder}/draft", dtype=torch.float64, tensor_parallel=True)
    layer = pair.target.model.model.layers[0].self_attn.q_proj.weight
    rank, world = rank_and_world()
    found = [json.loads(json.dumps(rounds(pair, split=True))), list(layer.to_local().shape), list(layer.shape), world]
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(found, file)
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_decode_as_one(small_home: Path, small_pair: Pair, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", "--standalone"]
    arguments = [str(small_home / "checkpoints" / "tiny"), str(tmp_path)]
    done = subprocess.run(
        [*torchrun, sys.executable, "-c", CODE, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    expected = json.loads(json.dumps(rounds(small_pair)))
    assert sum(len(run) for run in expected) > 10
    for rank in range(2):
        found, part, whole, world = json.loads((tmp_path / f"{rank}.json").read_text())
        assert world == 2
        assert part == [whole[0] // 2, whole[1]]  # it is split, and not copied
        assert found == expected


def test_processes_that_do_not_divide_the_heads(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    place = small_pair.sources["target"][0]
    with pytest.raises(InputError, match=r"3 processes do not divide the 4 and 2 heads of .*: start as many as divide"):
        load_pair(target=place, draft=small_pair.sources["draft"][0], tensor_parallel=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert distributed_config(place, trust_remote_code=False).tp_size == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tp"], "--tp splits the target over the processes of torchrun: torchrun --nproc-per-node 2"),
        (["--tp", "--chat"], "--chat reads a terminal"),
        (["--tp", "--device-map", "auto"], "--tp and --device-map both say"),
    ],
)
def test_what_cannot_be(options: list[str], message: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "--device-map" in options:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
    said = CliRunner().invoke(app, ["generate", "a", "--pair", "tiny", *options])
    assert said.exit_code == 2
    assert said.stderr.startswith(f"c2t: {message}")
    assert len(said.stderr.splitlines()) == 1


@pytest.mark.parametrize("options", [["--policy", "budget:of=eagle2:N=none,K=3"], ["--tuned"]])
def test_a_budget_by_costs_is_refused(options: list[str], small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would measure its own."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(shared, "load", lambda *_, **_named: small_pair)
    tuned = autotune_cache.Tuned("budget:of=eagle2:N=none,K=3", "tiny", 1.0, None, {})
    monkeypatch.setattr(autotune_cache, "lookup", lambda key: tuned)
    said = CliRunner().invoke(app, ["generate", "a", "--tp", *options])
    assert said.exit_code == 2
    assert said.stderr == (
        "c2t: --tp: each process would have its own costs; give the budget nodes, as budget:nodes=64\n"
    )
