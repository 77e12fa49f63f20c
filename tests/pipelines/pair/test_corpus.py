"""The frozen corpus: three domains, cut from sources as described, whole files in one split."""

from collections import defaultdict
from pathlib import Path

import pytest

from pipelines.pair import corpus
from pipelines.pair.build import CORPUS

SOURCE = '''"""Short."""
# This is a comment that runs over two lines and is long enough to be taken
# as a paragraph of running text by the corpus.
def double(value):
    """Twice the value.

    The paragraph below the first line is running text, and long enough for the corpus to take it.

    >>> double(2)
    4
    >>> double(3)
    6
    """
    result = value + value
    # done
    return result
'''


@pytest.fixture(scope="module")
def frozen() -> list[corpus.Document]:
    return corpus.load(CORPUS)


def test_units_of_a_file_are_functions_paragraphs_and_examples(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    found = defaultdict(list)
    for domain, text in corpus.units(path):
        found[domain].append(text)
    body = '    """Twice the value."""\n    result = value + value\n    # done\n    return result'
    assert found["code"] == [f"def double(value):\n{body}"]
    assert found["doctest"] == [">>> double(2)\n4\n>>> double(3)\n6"]
    assert [text.split()[0] for text in found["prose"]] == ["The", "This"]


def test_a_file_that_is_not_python_has_no_units(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def broken(:\n")
    assert list(corpus.units(path)) == []


def test_files_belong_to_one_split_and_repeat_no_document(frozen: list[corpus.Document]) -> None:
    splits = defaultdict(set)
    for document in frozen:
        splits[document.source].add(document.split)
        assert document.split == corpus.split_of(document.source)
    assert all(len(found) == 1 for found in splits.values())
    assert len({document.text for document in frozen}) == len(frozen)


def test_every_domain_is_trained_on_and_held_out(frozen: list[corpus.Document]) -> None:
    assert {(d.domain, d.trained) for d in frozen} == {(d, t) for d in corpus.QUOTA for t in (True, False)}


def test_shares_of_the_splits_sum_to_all() -> None:
    assert sum(share for _, share in corpus.SPLITS) == 100
