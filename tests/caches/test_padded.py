"""The cache against lists: after every operation each row holds exactly the entries that it kept."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.caches.padded import KVCache

LAYERS, HEADS, DIM = 2, 2, 3


def append(cache: KVCache, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Append entries that carry their number; layer and key/value are told apart by their sign and size."""
    entries = numbers[:, None, :, None].double().expand(-1, HEADS, -1, DIM)
    for layer in range(LAYERS):
        keys, values = cache.update(entries + 1000 * layer, -entries - 1000 * layer, layer)
    return keys, values


def stored(cache: KVCache, row: int) -> list[int]:
    """Numbers of the committed entries of a row, the same in all layers, heads and dimensions."""
    entries = torch.stack(cache.buffers)[:, :, row, :, : int(cache.lengths[row])]
    first = entries[0, 0, 0, :, 0]
    for layer in range(LAYERS):
        plain = (first + 1000 * layer)[None, :, None].expand(HEADS, -1, DIM)
        assert entries[layer, 0].equal(plain)
        assert entries[layer, 1].equal(-plain)
    return [int(number) for number in first]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_row_holds_what_it_kept(data) -> None:
    rows = data.draw(st.integers(1, 4))
    cache, kept, number = KVCache(LAYERS, capacity=2), [[] for _ in range(rows)], 1
    for _ in range(data.draw(st.integers(1, 8))):
        pending: list[list[int]] = [[] for _ in kept]
        for _ in range(data.draw(st.integers(1, 2))):
            width = data.draw(st.integers(1, 5))
            numbers = number + torch.arange(len(kept) * width).reshape(len(kept), width)
            number += numbers.numel()
            keys, values = append(cache, numbers)
            pending = [old + new for old, new in zip(pending, numbers.tolist(), strict=True)]
            assert keys.shape[2] == values.shape[2] == cache.length + len(pending[0])
            assert (keys[:, 0, cache.length :, 0] - 1000).tolist() == pending
            assert cache.get_seq_length() == keys.shape[2]
        action = data.draw(st.sampled_from(["keep", "drop", "select"]))
        if action == "drop":
            cache.drop()
        else:
            counts = [data.draw(st.integers(0, len(row))) for row in pending]
            places = st.lists(st.integers(0, len(pending[0]) - 1), min_size=5, max_size=5)
            index = [data.draw(places)[: len(pending[0])] for _ in pending]
            counts = [min(count, len(index[0])) for count in counts]
            cache.keep(torch.tensor(index), torch.tensor(counts))
            for row, (places_of_row, count) in enumerate(zip(index, counts, strict=True)):
                kept[row] += [pending[row][place] for place in places_of_row[:count]]
        if action == "select":
            chosen = data.draw(st.lists(st.integers(0, len(kept) - 1), min_size=1, unique=True))
            cache.select(torch.tensor(chosen))
            kept = [list(kept[row]) for row in chosen]
        if data.draw(st.booleans()):
            width = data.draw(st.integers(1, 70))  # beyond a cache's first capacity, too
            other, numbers = KVCache(LAYERS, data.draw(st.sampled_from([1, 64]))), number + torch.arange(width)[None]
            number += width
            append(other, numbers)
            count = data.draw(st.integers(1, width))
            other.keep(torch.arange(width)[None], torch.tensor([count]))
            cache.join(other)
            kept.append(numbers[0, :count].tolist())
        assert cache.pending == 0
        assert [stored(cache, row) for row in range(len(kept))] == kept
        assert cache.length == max(map(len, kept))
        assert cache.visible().sum(1).tolist() == [len(row) for row in kept]
        assert torch.stack(cache.buffers).isfinite().all()


def test_growth_keeps_what_is_there() -> None:
    cache = KVCache(LAYERS, capacity=2)
    append(cache, torch.tensor([[1, 2], [3, 4]]))
    cache.keep(torch.tensor([[0, 1], [1, 0]]), torch.tensor([2, 1]))
    assert cache.buffers[0].shape[3] == 2
    append(cache, torch.tensor([[5, 6, 7], [8, 9, 10]]))
    assert cache.buffers[0].shape[3] == 5  # doubled, or as much as is needed
    assert stored(cache, 0) == [1, 2]
    assert stored(cache, 1) == [4]


def test_positions_are_places_of_committed_slots_and_remembered_for_pending_ones() -> None:
    cache = KVCache(LAYERS)
    assert cache.positions(torch.tensor([[0, 1, 2], [0, 1, 2]])).tolist() == [[0, 1, 2]] * 2
    append(cache, torch.ones(2, 3))
    cache.keep(torch.tensor([[0, 1, 2]] * 2), torch.tensor([3, 2]))
    first, second = torch.tensor([[3, 4], [2, 3]]), torch.tensor([[5], [4]])
    assert cache.positions(first).tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 2, 3]]
    append(cache, torch.ones(2, 2))
    assert cache.positions(second).tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 2, 3, 4]]
    cache.drop()
    assert cache.positions(second).tolist() == [[0, 1, 2, 5], [0, 1, 2, 4]]


@pytest.mark.parametrize("rows", [[1], [2, 0]])
def test_select_goes_on_with_the_longest_of_the_remaining_rows(rows: list[int]) -> None:
    cache = KVCache(LAYERS)
    append(cache, torch.arange(12).reshape(3, 4))
    cache.keep(torch.arange(4).expand(3, 4), torch.tensor([4, 1, 2]))
    cache.select(torch.tensor(rows))
    assert cache.length == max([4, 1, 2][row] for row in rows)
    assert [stored(cache, row) for row in range(len(rows))] == [list(range(4 * r, 4 * r + [4, 1, 2][r])) for r in rows]


def test_a_fork_has_rows_of_its_own() -> None:
    """Row r sees the first lengths[r] slots of the one row; what forks append is theirs alone."""
    cache = KVCache(1)
    text, new = (torch.randn(rows, 2, count, 4) for rows, count in ((1, 6), (3, 2)))
    cache.update(text, -text, 0)
    cache.keep(torch.arange(6)[None], torch.tensor([6]))
    before = cache.buffers[0].clone()
    fork = cache.fork(torch.tensor([5, 1, 3]))
    assert fork.visible().tolist() == [[True] * 5, [True] + [False] * 4, [True] * 3 + [False] * 2]
    keys, values = fork.update(new, -new, 0)
    assert keys.equal(torch.cat([text[:, :, :5].expand(3, -1, -1, -1), new], 2))
    assert values.equal(-keys)
    assert cache.buffers[0].equal(before)
    assert (cache.length, cache.pending, fork.pending) == (6, 0, 2)
