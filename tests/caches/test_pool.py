"""The pool against lists: after every operation each row holds exactly the entries that it kept, in any order of
coming and going; and memory follows the entries that are there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.caches.pool import QUANTUM, KVPool
from c2t.caches.ragged import Ragged

LAYERS, HEADS, DIM = 2, 2, 3


def append(pool: KVPool, real: torch.Tensor, numbers: torch.Tensor) -> None:
    """Append the real ones of (B, n) entries, which carry their number."""
    rows = Ragged.of(real)
    pool.append(rows)
    for layer in range(LAYERS):
        entries = rows.take(numbers)[None, None, :, None].double().expand(-1, HEADS, -1, DIM) + 1000 * layer
        keys, values = pool.update(entries, -entries, layer)
        for row, places in enumerate(pool.token_slots[rows.row == r] for r in range(len(rows.sizes))):
            assert set(places.tolist()) <= set(range(*pool.row(row, rows.spans[row]).indices(pool.slots)))
        assert keys[0, :, pool.token_slots].equal(entries[0])
        assert values[0, :, pool.token_slots].equal(-entries[0])


def stored(pool: KVPool, row: int) -> list[int]:
    """Numbers of the committed entries of a row, the same in all layers, heads and dimensions."""
    first = pool.prefix(0, row)[0, 0, :, 0]
    for layer in range(LAYERS):
        plain = (first + 1000 * layer)[None, :, None].expand(HEADS, -1, DIM)
        assert pool.prefix(layer, row)[0].equal(plain)
        assert pool.prefix(layer, row)[1].equal(-plain)
    return [int(number) for number in first]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_row_holds_what_it_kept(data) -> None:
    counter = iter(range(1, 10**9))

    def round_of(pool: KVPool, kept: list[list[int]]) -> None:
        width = data.draw(st.sampled_from([1, 2, 5, 90]))
        real = torch.tensor([[True] + [data.draw(st.booleans()) for _ in range(min(width, 5) - 1)] for _ in kept])
        real = torch.nn.functional.pad(real, (0, width - real.shape[1]), value=True)
        numbers = torch.tensor([[next(counter) for _ in range(width)] for _ in kept])
        append(pool, real, numbers)
        if data.draw(st.booleans()):
            pool.drop()
            return
        index = torch.zeros(len(kept), width, dtype=torch.long)
        count = torch.zeros(len(kept), dtype=torch.long)
        for row, flags in enumerate(real):
            there = flags.nonzero()[:, 0].tolist()
            chosen = data.draw(st.lists(st.sampled_from(there), max_size=width))
            index[row, : len(chosen)], count[row] = torch.tensor(chosen, dtype=torch.long), len(chosen)
            kept[row] += numbers[row, chosen].tolist()
        pool.keep(index, count)

    pool, kept = KVPool(LAYERS), [[] for _ in range(data.draw(st.integers(1, 3)))]
    round_of(pool, kept)
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["round", "round", "select", "join"]))
        if action == "round":
            round_of(pool, kept)
        elif action == "select" and len(kept) > 1:
            chosen = data.draw(st.lists(st.integers(0, len(kept) - 1), min_size=1, unique=True))
            pool.select(torch.tensor(chosen))
            kept = [kept[row] for row in chosen]
        elif action == "join":
            other, theirs = KVPool(LAYERS), [[] for _ in range(data.draw(st.integers(1, 2)))]
            round_of(other, theirs)
            pool.join(other)
            kept += theirs
        assert [stored(pool, row) for row in range(len(kept))] == kept
        assert pool.lengths.tolist() == [len(row) for row in kept]


def test_memory_follows_the_entries_in_use() -> None:
    """A thousand rows come and go beside one that stays; the buffers stay as small as what is in use at once."""
    pool, number = KVPool(LAYERS), 0
    for turn in range(1000):
        new = KVPool(LAYERS)
        length = 1 + 37 * turn % 100
        append(new, torch.ones(1, length, dtype=torch.bool), torch.arange(length)[None] + number)
        new.keep(torch.arange(length)[None], torch.tensor([length]))
        if turn:
            pool.join(new)
            pool.select(torch.tensor([0, len(pool.starts) - 1]))
        else:
            pool = new
        assert stored(pool, len(pool.starts) - 1) == list(range(number, number + length))
        number += length
    assert pool.slots <= 4 * (200 + 2 * QUANTUM)


def test_a_copy_goes_its_own_way() -> None:
    """It leaves rows out, appends, moves and rebuilds; the original's rows stay, and can grow."""
    pool, lengths = KVPool(LAYERS), torch.tensor([7, 30, 9, 32, 31])
    numbers = torch.arange(5 * 32).view(5, 32)
    append(pool, torch.arange(32) < lengths[:, None], numbers)
    pool.keep(torch.arange(32).expand(5, -1), lengths)
    before = [stored(pool, row) for row in range(5)]
    for rows, size in ((2, 11), (5, 6), (1, 500), (5, 40), (3, 1)):
        other = pool.copy()
        other.select(torch.arange(rows))
        append(other, torch.ones(rows, size, dtype=torch.bool), torch.zeros(rows, size, dtype=torch.long))
        assert [stored(other, row) for row in range(rows)] == before[:rows]
        assert [stored(pool, row) for row in range(5)] == before
    append(pool, torch.ones(5, 60, dtype=torch.bool), 1000 + torch.arange(300).view(5, 60))
    pool.keep(torch.arange(60).expand(5, -1), torch.full((5,), 60))
    assert [row[-60:] for row in (stored(pool, 0), stored(pool, 4))] == [[*range(1000, 1060)], [*range(1240, 1300)]]


def test_the_last_row_grows_where_it_is() -> None:
    """Until the buffers end; what it has committed stays in place, and so does the row before it."""
    pool = KVPool(LAYERS)
    append(pool, torch.ones(2, 40, dtype=torch.bool), torch.arange(80).view(2, 40))
    pool.keep(torch.arange(40).expand(2, -1), torch.tensor([40, 40]))
    buffers, starts, texts = list(pool.buffers), list(pool.starts), [stored(pool, row) for row in range(2)]
    grown = 0
    while True:
        alive = torch.tensor([[False] * 8, [True] * 8])
        append(pool, alive, torch.full((2, 8), 100 + grown))
        if pool.buffers[0] is not buffers[0]:
            break
        assert pool.starts == starts
        assert pool.end <= pool.slots
        pool.keep(torch.arange(8).expand(2, -1), torch.tensor([0, 8]))
        grown += 8
    room = buffers[0].shape[2] - starts[1]
    assert room - 8 < 40 + grown <= room
    assert stored(pool, 0) == texts[0]
    assert stored(pool, 1)[:40] == texts[1]


def test_a_buffer_that_is_too_short_is_an_error_of_ours() -> None:
    """Places beyond it would be written by a kernel without a look."""
    pool = KVPool(LAYERS)
    append(pool, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.long))
    pool.buffers[1] = pool.buffers[1][:, :, :-QUANTUM]
    with pytest.raises(AssertionError, match="other slots than the rows were given"):
        append(pool, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.long))
