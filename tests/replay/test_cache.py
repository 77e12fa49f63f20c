"""Texts on disk: read again only for the same request, and never a reason to fail."""

import copy
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from c2t.models.loading.load import Pair
from c2t.replay import cache as text_cache
from c2t.replay.cache import cached_continuations, folder
from c2t.replay.lockstep import Continuation
from c2t.sampling import Sampling
from tests.flips import flips
from tests.small_pair import TURNS

SETTINGS = {"max_new_tokens": 6, "beyond": 3, "sampling": Sampling(0.8, seed=2), "sequences": [0, 5, 2]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each batch that the target really writes."""
    write, calls = text_cache.write_continuations, []

    def counted(target, ids, **settings):
        calls.append(len(ids))
        return write(target, ids, **settings)

    monkeypatch.setattr(text_cache, "write_continuations", counted)
    return calls


def ids_of(pair: Pair) -> list[list[int]]:
    return [pair.tokenizer(turn).input_ids for turn in TURNS[:3]]


def same(one: list[Continuation], other: list[Continuation]) -> bool:
    return len(one) == len(other) and all(
        a.tokens.equal(b.tokens) and a.features.equal(b.features) and a[2:] == b[2:]
        for a, b in zip(one, other, strict=True)
    )


def test_the_second_request_reads_what_the_first_wrote(small_pair: Pair, writes: list[int]) -> None:
    first, second = (cached_continuations(small_pair, ids_of(small_pair), **SETTINGS) for _ in range(2))
    assert writes == [3]
    assert same(first, second)
    assert second[0].features.dtype == torch.float64
    assert [path.suffix for path in folder().iterdir()] == [".safetensors"]


@pytest.mark.parametrize(
    "change",
    [
        {"max_new_tokens": 5},
        {"beyond": 4},
        {"sequences": [0, 5, 3]},
        {"sampling": Sampling(0.8, seed=3)},
        {"sampling": Sampling(0.7, seed=2)},
        {"sampling": Sampling(0.8, top_p=0.9, seed=2)},
        {"sampling": Sampling(0.8, top_k=9, seed=2)},
        {"sampling": Sampling(0.8, repetition_penalty=1.1, seed=2)},
    ],
    ids=str,
)
def test_other_settings_are_other_texts(change: dict, small_pair: Pair, writes: list[int]) -> None:
    for settings in (SETTINGS, SETTINGS | change, SETTINGS):
        cached_continuations(small_pair, ids_of(small_pair), **settings)
    assert writes == [3, 3]


def test_other_weights_prompts_templates_and_features_are_other_texts(small_pair: Pair, writes: list[int]) -> None:
    ids = ids_of(small_pair)
    weights = replace(small_pair, sources={**small_pair.sources, "target": ("there", "another")})
    for pair, prompts in (
        (small_pair, ids),
        (weights, ids),
        (replace(small_pair, template="llama2"), ids),
        (small_pair, [*ids[:2], [*ids[2], 7]]),
        (small_pair, ids),
    ):
        cached_continuations(pair, prompts, **SETTINGS)
    assert writes == [3, 3, 3, 3]
    tapped, rounded = type(small_pair.target)(small_pair.target.model), copy.copy(small_pair.target)
    tapped.tapped, rounded.rounded = {0: None, 1: None}, True
    pairs = [replace(small_pair, target=target) for target in (small_pair.target, tapped, rounded)]
    assert len({text_cache._key(pair, ids, {}, Sampling()) for pair in pairs}) == 3


def of_other_prompts(path: Path) -> None:
    parts = text_cache.load_file(path)
    parts["tokens"][0] += 1
    text_cache.save_file(parts, path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(b"no safetensors at all"),
        lambda path: text_cache.save_file({"tokens": torch.zeros(3)}, path),
        of_other_prompts,
    ],
    ids=["cut short", "garbage", "another table", "other prompts"],
)
def test_a_damaged_file_is_written_again(damage, small_pair: Pair, writes: list[int]) -> None:
    first = cached_continuations(small_pair, ids_of(small_pair), **SETTINGS)
    [path] = folder().iterdir()
    damage(path)
    with pytest.warns(UserWarning, match="is damaged .*written again") as warned:
        second = cached_continuations(small_pair, ids_of(small_pair), **SETTINGS)
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    assert same(first, second)
    assert same(first, cached_continuations(small_pair, ids_of(small_pair), **SETTINGS))
    assert writes == [3, 3]


def test_a_flipped_bit_is_noticed_or_changes_nothing(small_pair: Pair) -> None:
    ids = ids_of(small_pair)
    first = cached_continuations(small_pair, ids, **SETTINGS)
    [path] = folder().iterdir()

    def same_or_warned() -> bool:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            texts = text_cache._read(path, ids, SETTINGS["max_new_tokens"], torch.device("cpu"))
        return len(warned) == 1 and "\n" not in str(warned[0].message) if texts is None else same(first, texts)

    assert list(flips(path, same_or_warned, 300)) == []


def test_a_place_that_cannot_be_written_to_is_a_warning(
    small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="C2T_CACHE"):
        assert len(cached_continuations(small_pair, ids_of(small_pair), **SETTINGS)) == 3


@pytest.mark.filterwarnings("error")
def test_another_users_file_is_read(small_pair: Pair, writes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its owner may change a file's time."""

    def not_permitted(*_args: object, **_named: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    cached_continuations(small_pair, ids_of(small_pair), **SETTINGS)
    monkeypatch.setattr(text_cache.os, "utime", not_permitted)
    cached_continuations(small_pair, ids_of(small_pair), **SETTINGS)
    assert len(writes) == 1


def test_the_oldest_texts_go_when_there_are_too_many(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(small_pair)
    cached_continuations(small_pair, ids, **SETTINGS)
    [first] = folder().iterdir()
    monkeypatch.setattr(text_cache, "LIMIT", int(2.5 * first.stat().st_size))
    for seed in (7, 8):
        cached_continuations(small_pair, ids, **SETTINGS)  # used again, so it is not the oldest
        cached_continuations(small_pair, ids, **SETTINGS | {"sampling": Sampling(0.8, seed=seed)})
    assert first in folder().iterdir()
    assert len(list(folder().iterdir())) == 2


def test_targets_without_files_are_not_kept(small_pair: Pair, writes: list[int]) -> None:
    for _ in range(2):
        cached_continuations(replace(small_pair, sources={}), ids_of(small_pair), **SETTINGS)
    assert writes == [3, 3]
    assert not folder().exists()


def test_the_default_place_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("C2T_CACHE")
    assert folder() == Path.home() / ".cache" / "c2t" / "texts"
