"""What `make test` runs: some test of every file, hence of every law, kernel, policy, command, reader and page."""

from pathlib import Path

import pytest

from tests.conftest import COLLECTED
from tests.every_policy import ONE_OF_EACH, SAMPLED

HERE = Path(__file__).parent
# What these files test is tested by others, too, which are quicker.
LEFT_TO_TEST_ALL = {
    "harvest/test_same_rows.py": "a harvest of smollm2 in other batches; harvest/test_harvest.py has tiny's",
    "hf/test_example.py": "an example; test_readme.py runs the same lines",
    "hostile/test_places.py": "twelve commands under an audit hook; storage/ has the places one by one",
    "kernels/test_compile_sm90.py": "compiles what the kernels' own files run in the interpreter",
    "test_misuse.py": "checks of types, which quick tests also run with, would answer before c2t does",
    "test_extras.py": "a process without the extras",
}


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> list[pytest.Item]:
    items = request.config.stash[COLLECTED]
    if {item.path for item in items} < set(HERE.rglob("test_*.py")):
        pytest.skip("only a part of the tests was collected")
    return items


def is_quick(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is None


def test_every_file_has_a_quick_test(collected: list[pytest.Item]) -> None:
    quick = {item.path.relative_to(HERE).as_posix() for item in collected if is_quick(item)}
    files = {path.relative_to(HERE).as_posix() for path in HERE.rglob("test_*.py")}
    assert files - quick == set(LEFT_TO_TEST_ALL)


@pytest.mark.parametrize(
    ("file", "test", "names"),
    [
        ("policies/test_every_policy.py", "test_each_row_is_its_run_alone", ONE_OF_EACH),
        ("test_law.py", "test_text_follows_the_targets_law", set(ONE_OF_EACH) & set(SAMPLED)),  # whose rule it is about
    ],
)
def test_every_policy_has_a_quick_test(file: str, test: str, names: set[str], collected: list[pytest.Item]) -> None:
    ran = [item for item in collected if item.path == HERE / file and item.originalname == test and is_quick(item)]
    assert {item.callspec.params["name"] for item in ran} >= set(names)
