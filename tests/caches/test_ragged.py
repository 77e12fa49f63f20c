"""Real slots laid end to end, as torch's own operations find them, in dense memory, which kernels read by address."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from c2t.caches.ragged import CACHED, Ragged, whole
from c2t.kernels import layout
from c2t.models.target.packed_model import slots_of_all

CPU = torch.device("cpu")
MASKS = {
    "ragged": [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]],
    "with holes": [[1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 1, 0]],
    "an empty row": [[0, 0], [1, 1]],
    "nothing": [[0, 0], [0, 0]],
    "all": [[1, 1], [1, 1]],
    "no slots": [[], []],
}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", MASKS)
def test_real_slots_are_found_row_after_row(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(layout, "kernels", lambda: None)
    real = torch.tensor(MASKS[name], dtype=torch.bool)
    rows = Ragged.of(real)
    row, slot = real.nonzero(as_tuple=True)
    assert rows.number.equal(real.flatten().nonzero()[:, 0])
    assert rows.row.equal(row)
    assert rows.slot.equal(slot)
    assert rows.packed_index[real].equal(torch.arange(len(row)))
    assert rows.sizes == real.sum(1).tolist()
    assert rows.spans == [max((n + 1 for n, one in enumerate(each) if one), default=0) for each in MASKS[name]]
    assert all(part.is_contiguous() for part in rows[:4])


@pytest.mark.parametrize("name", MASKS)
def test_values_go_there_and_back(name: str) -> None:
    real = torch.tensor(MASKS[name], dtype=torch.bool)
    values = torch.rand(*real.shape, 3)
    rows = Ragged.of(real)
    taken = rows.take(values)
    assert taken.equal(values[real])
    assert rows.back(taken)[real].equal(values[real])


@pytest.mark.parametrize("make", [lambda rows, n: whole(rows, n, CPU), lambda rows, n: slots_of_all(rows, n, 4096)])
def test_layouts_of_levels_are_kept_and_those_of_prompts_are_not(make: Callable) -> None:
    assert make(3, 20) is make(3, 20)
    gone = weakref.ref(make(3, CACHED)[0])
    gc.collect()
    assert gone() is None
