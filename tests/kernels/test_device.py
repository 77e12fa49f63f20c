"""The device of models: the one that is named, else a GPU if there is one, in Python and on the command line."""

import pytest
import torch

from c2t.errors import InputError
from c2t.kernels.device import checked_device


def test_without_a_name_it_is_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch, "empty", lambda *shape, device, dtype: asked.append(device))
    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert checked_device(None) == torch.device(device)
        assert checked_device("cpu") == torch.device("cpu")
    assert asked == ["cuda", "cpu", "cpu", "cpu"]


@pytest.mark.parametrize("name", ["quantum", "", "cuda:99"])
def test_what_computes_nothing_here_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"no device is called '{name}' on this machine; cpu always works"):
        checked_device(name)
