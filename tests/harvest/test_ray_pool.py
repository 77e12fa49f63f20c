"""Ray actors: the files of one process, with an actor killed in the middle; and what a cluster cannot do."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.errors import InputError
from c2t.harvest import ray_pool
from c2t.harvest.harvest import harvest, harvest_by
from c2t.harvest.ray_pool import LOCAL, RayPool
from c2t.harvest.settings import HarvestSettings
from c2t.models.loading.load import Pair, load_pair
from c2t.replay.prompts import Prompt
from c2t.study.points import read_points
from c2t.study.sweep import SweepSettings, candidates, sweep
from tests import whole_float64
from tests.harvests import assert_same_rows
from tests.small_pair import TURNS

PROMPTS = [Prompt(number, "known", [turn], "code.jsonl") for number, turn in enumerate(TURNS[:9])]
PROMPTS += [Prompt(9, "heldout", ["The sum of", "a number is"], "chat.jsonl")]
SMALL = HarvestSettings(K=3, levels=3, M=100, max_new_tokens=8, batch=2)


@pytest.fixture(scope="module")
def pool(small_pair: Pair) -> Iterator[RayPool]:
    """Two actors with the small pair. Only one cluster is started: that takes seconds."""
    places = {part: small_pair.sources[part][0] for part in ("target", "draft")}
    with RayPool(partial(load, **places, dtype=small_pair.target.model.dtype), LOCAL, 2) as made:
        yield made
    assert not ray.is_initialized()


def load(**named: Any) -> Pair:
    """Load the pair in an actor, whose float64 models have to be whole as well."""
    whole_float64.install()
    return load_pair(**named)


def process(pair: Pair) -> int:
    return os.getpid()


def refuse(pair: Pair, item: int) -> int:
    if item == 3:
        raise InputError("item 3 is wrong")
    return 2 * item


@pytest.mark.slow
def test_a_killed_actor_changes_nothing(pool: RayPool, small_pair: Pair, tmp_path: Path) -> None:
    """No row is lost and none is there twice: they are those of one process, in as many files as the time makes."""
    whole = harvest(small_pair, PROMPTS, tmp_path / "whole", SMALL)
    victim, told = pool.call(process), []

    def progress(done: int, of: int, _: str) -> None:
        if not told:
            os.kill(victim, signal.SIGKILL)
        told.append((done, of))

    done = harvest_by(pool, PROMPTS, tmp_path / "ray", SMALL, progress=progress)
    assert pool.call(process) != victim
    assert_same_rows(done, whole)
    assert (done.rows, done.trees, done.prompts) == (whole.rows, whole.trees, whole.prompts)
    texts, of = zip(*told, strict=True)
    assert list(texts) == sorted(set(texts))
    assert (texts[-1], set(of)) == (len(done.prompts), {len(done.prompts)})


@pytest.mark.slow
def test_actors_go_on_with_a_stopped_harvest(pool: RayPool, small_pair: Pair, tmp_path: Path) -> None:
    """They run the groups that are left."""

    def stop(done: int, *_: object) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harvest(small_pair, PROMPTS, tmp_path / "rows", SMALL, progress=stop)
    told: list[int] = []
    tell = {"progress": lambda count, *_: told.append(count)}
    done = harvest_by(pool, PROMPTS, tmp_path / "rows", SMALL, resume=True, **tell)
    whole = harvest(small_pair, PROMPTS, tmp_path / "whole", SMALL)
    assert_same_rows(whole, done)
    assert min(told) > 2
    assert max(told) == len(whole.prompts)


@pytest.mark.slow
def test_a_sweeps_points_are_those_of_one_process(pool: RayPool, small_pair: Pair, tmp_path: Path) -> None:
    """With a classifier in a policy, which is sent along, and with the file of points."""
    network = TreeClassifier(ClassifierConfig(beta=0.3))
    grid = candidates("c2t:K=3,levels=3,eagle2:K=3,levels=3,N=4|8,dyspec:N=6", lambda name=None: network)
    settings, told = SweepSettings(max_new_tokens=8, temperature=0.8), []
    expected = sweep(small_pair, grid, PROMPTS, settings, tmp_path / "here.jsonl")
    found = sweep(small_pair, grid, PROMPTS, settings, tmp_path / "ray.jsonl", lambda *all: told.append(all[:2]), pool)
    assert found == expected
    assert len(found.points) == 4
    assert read_points(tmp_path / "ray.jsonl") == read_points(tmp_path / "here.jsonl")
    assert told[-1][0] == told[-1][1] == 4 * 11


@pytest.mark.slow
def test_results_come_in_order_and_errors_as_they_are(pool: RayPool) -> None:
    finished: list[int] = []
    assert list(pool.map(refuse, [5, 1, 4, 2, 9, 8, 7, 6], finished.append)) == [10, 2, 8, 4, 18, 16, 14, 12]
    assert sorted(finished) == [1, 2, 4, 5, 6, 7, 8, 9]
    with pytest.raises(InputError, match=r"^item 3 is wrong$"):
        list(pool.map(refuse, [1, 2, 3, 4]))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ray.exceptions.ActorDiedError(), "died 4 times on the same item"),
        (ray.exceptions.OutOfMemoryError("memory is low"), r"cannot get a worker's result \(memory is low\): look"),
        (ray.exceptions.NodeDiedError("gone"), r"cannot get a worker's result \(gone\)"),
        (ray.exceptions.RaySystemError("lost"), r"cannot get a worker's result \(System error: lost\)"),
    ],
)
def test_results_that_ray_cannot_get_end_the_map(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(_: object) -> None:
        raise error

    monkeypatch.setattr(ray, "get", dead)
    with pytest.raises(InputError, match=message):
        ray_pool._get([])


def test_an_actor_that_cannot_load_says_why_whatever_it_is_asked() -> None:
    """Also after a restart, when nobody asks it about its machine."""

    def make() -> None:
        raise InputError("no target here")

    worker = ray_pool._Worker(make)
    for ask in (worker.about, lambda: worker.call(process, ())):
        with pytest.raises(InputError, match=r"^no target here$"):
            ask()


@pytest.mark.parametrize("during", [False, True], ids=["after the start", "during the start"])
def test_sigterm_keeps_its_handler(during: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray puts one there that ends the process with exit code 15."""
    got: list[int] = []

    def start(*_: object, **__: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        if during:
            signal.raise_signal(signal.SIGTERM)
        raise RuntimeError

    monkeypatch.setattr(ray, "init", start)
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        with pytest.raises(SystemExit if during else InputError):
            RayPool(dict, LOCAL, 1)
        assert len(got) == during
        signal.raise_signal(signal.SIGTERM)
        assert len(got) == during + 1
    finally:
        signal.signal(signal.SIGTERM, before)


def test_settings_are_refused_before_the_folder_is_touched(pool: RayPool, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave no room for a prompt"):
        harvest_by(pool, PROMPTS, tmp_path / "rows", HarvestSettings(max_new_tokens=10_000))
    assert not (tmp_path / "rows").exists()


def other_version(pool: RayPool, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ray_pool, "versions", lambda: {"c2t": "9.9", "torch": "1", "transformers": "1"})
    pool._check_versions()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda pool, _: pool._check_size(2, 1), "cluster local has 0 GPUs, and 2 workers need 2: .*--device cpu"),
        (lambda pool, _: pool._check_size(9, 0), "has 2 CPUs, and 9 workers need 9"),
        (other_version, r"the Ray worker on .* has c2t \d.*, this process 9.9: install the same"),
        (lambda *_: RayPool(dict, LOCAL, 0), "workers = 0"),
        (lambda *_: RayPool(dict, "127.0.0.1:9", 1), "no Ray cluster answers at 127.0.0.1:9"),
        (lambda *_: RayPool(dict, "127.0.0.1:nine", 1), "no Ray cluster answers at 127.0.0.1:nine"),
    ],
)
def test_what_a_cluster_cannot_do(pool: RayPool, ask: Callable, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=message):
        ask(pool, monkeypatch)
