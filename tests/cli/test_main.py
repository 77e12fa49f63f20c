"""The command line's entry."""

import os
import subprocess
import sys

import pytest

from c2t.__main__ import sleep_soon


@pytest.mark.parametrize(
    ("said", "meant"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_sleep_soon_unless_the_environment_says_otherwise(said, meant, monkeypatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    sleep_soon()
    assert os.environ.get("GOMP_SPINCOUNT") == meant


def test_the_entry_is_read_before_openmp() -> None:
    code = "import sys, c2t.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
