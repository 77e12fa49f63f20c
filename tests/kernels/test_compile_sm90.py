"""The kernels compile for an H100 or H200 without one."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_kernels_compile_for_sm_90() -> None:
    """Triton's compiler needs no GPU; its interpreter, which the other tests run in, excludes it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compile_sm90"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bytes of shared memory") == 37
