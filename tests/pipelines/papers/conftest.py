"""One small study for all reproductions: a harvest, classifiers and counts are made once."""

import shutil
from pathlib import Path

import pytest

from pipelines.papers import study as paper
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import SMALL, small_training


@pytest.fixture(scope="package")
def shared_home(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the small home, with the target as a draft of its own."""
    home = tmp_path_factory.mktemp("papers") / "home"
    shutil.copytree(small_home, home)
    shutil.copytree(home / "checkpoints" / "tiny" / "target", home / "checkpoints" / "tiny" / "draft_lm")
    return home


@pytest.fixture
def here(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This home as $C2T_HOME, and trainings of a few steps."""
    monkeypatch.setenv("C2T_HOME", str(shared_home))
    small_training(monkeypatch)
    return shared_home


@pytest.fixture(scope="package")
def loaded(shared_home: Path) -> Study:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C2T_HOME", str(shared_home))
        small_training(patch)
        made = paper.study(**SMALL)
        assert made.encoded
    return made


@pytest.fixture
def study(here: Path, loaded: Study) -> Study:
    return loaded
