"""What every test runs under: no network, fixed seeds, one thread unless OMP_NUM_THREADS says more, and Triton's
interpreter where there is no GPU."""

import math
import os
import signal
from collections.abc import Iterator

# Read when the libraries are imported, and by the commands that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["MPLBACKEND"] = "Agg"

import pytest
import torch
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)  # the same examples in every run, however slow
settings.load_profile("same")

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

from c2t.output import progress  # noqa: E402
from tests import whole_float64  # noqa: E402  (it imports transformers, which reads the environment above)

whole_float64.install()


COLLECTED = pytest.StashKey[list[pytest.Item]]()


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = list(items)
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Texts are not kept in the user's own cache, and libraries not under the user's own key."""
    os.environ["C2T_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command of a test says how far it is because the tests, or a slow machine, have taken a minute."""
    monkeypatch.setattr(progress, "MINUTE", math.inf)


@pytest.fixture
def heard() -> Iterator[None]:
    """Signals have Python's own handlers: whoever runs the tests may ignore some, as nohup does."""
    own = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in own.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


pytest_plugins = ["tests.small_pair"]
