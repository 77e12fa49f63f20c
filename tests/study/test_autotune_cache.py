"""What was tuned is found again for the same device, pair, draft, batch size and temperature, and for nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from c2t.costs import store as costs
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.study.autotune_cache import Tuned, key, lookup, path_of, store

FOUND = Tuned("eagle2:K=4", "tiny", 123.5, {"temperature": 0.4})

FROM_ELSEWHERE = (
    "mcsd+:decision=someone/classifier",
    "mcsd+: W = 2, decision = ./classifier",
    "static:accuracies=rates.json",
    "budget:costs=costs.json,of=threshold:threshold=0.1",
    "budget:nodes=4,of=budget:costs=/etc/passwd,of=plain",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_round_trip(small_pair: Pair, cache: Path) -> None:
    where = key(small_pair, 2, 0.4)
    with pytest.raises(InputError, match="run c2t tune"):
        lookup(where)
    path = store(where, FOUND)
    assert list(cache.iterdir()) == [path]
    assert lookup(where) == FOUND
    store(where, FOUND._replace(speed=1.0, ngrams=True))
    assert (lookup(where).speed, lookup(where).ngrams) == (1.0, True)
    assert list(cache.iterdir()) == [path]


def test_an_older_entry_is_read(small_pair: Pair) -> None:
    """It has the costs that its predictions were made of."""
    where = key(small_pair, 2, 0.4)
    path = store(where, FOUND)
    path.write_text(json.dumps({**json.loads(path.read_text()), "costs": {"batch": 2, "overhead": {}}}))
    assert lookup(where) == FOUND


def test_without_a_folder_of_ones_own_it_is_the_users(
    small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("C2T_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_of(key(small_pair, 1, 0.4)).parent == tmp_path / ".cache" / "c2t"


def test_the_key(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first = key(small_pair, 1, 0.4)
    sources = {**small_pair.sources, "draft": ("elsewhere", "abc")}
    moved = {name: ("elsewhere", mark) for name, (_, mark) in small_pair.sources.items()}
    assert key(replace(small_pair, sources=moved), 1, 0.4) == first
    others = [key(small_pair, 1, 0.0), key(small_pair, 2, 0.4)]
    others += [key(replace(small_pair, sources=sources), 1, 0.4), key(replace(small_pair, name="b"), 1, 0.4)]
    monkeypatch.setattr(costs, "device_name", lambda _device: "another")
    others.append(key(small_pair, 1, 0.4))
    assert len({path_of(one) for one in [first, *others]}) == 6


def test_threads_are_part_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = costs.device_name(torch.device("cpu"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert costs.device_name(torch.device("cpu")) != before


def test_kernels_for_another_processor_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("C2T_MARCH", "native")
    names = [costs.device_name(torch.device("cpu"))]
    monkeypatch.setenv("C2T_MARCH", "x86-64-v3")
    names.append(costs.device_name(torch.device("cpu")))
    monkeypatch.setattr(costs, "kernels", lambda: None)
    assert len({*names, costs.device_name(torch.device("cpu"))}) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: json.dumps({**json.loads(text), "policy": 3}),
        lambda text: json.dumps({**json.loads(text), "more": 1}),
        lambda text: text.replace('"batch": 2', '"batch": 3'),
    ],
)
def test_a_damaged_entry_is_one_clear_line_and_can_be_replaced(small_pair: Pair, damage) -> None:
    path = store(key(small_pair, 2, 0.4), FOUND)
    path.write_text(damage(path.read_text()))
    with pytest.raises(InputError, match=r"\.json is damaged; run c2t tune"):
        lookup(key(small_pair, 2, 0.4))
    store(key(small_pair, 2, 0.4), FOUND)
    assert lookup(key(small_pair, 2, 0.4)) == FOUND


@pytest.mark.parametrize("policy", FROM_ELSEWHERE)
def test_a_policy_that_names_a_file_or_a_hub_id_is_not_the_users(small_pair: Pair, policy: str) -> None:
    where = key(small_pair, 2, 0.4)
    store(where, FOUND._replace(policy=policy))
    with pytest.raises(InputError, match=r"tuned-.*json: .* is '.*', which only you can name: give --policy "):
        lookup(where)


def test_a_cache_that_cannot_be_written(small_pair: Pair, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(InputError, match=r"cannot store .* set \$C2T_CACHE"):
        store(key(small_pair, 1, 0.4), FOUND)
