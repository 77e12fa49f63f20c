"""The frozen corpus: three domains, whole files in one split."""

from collections import defaultdict

import pytest

from pipelines.pair import corpus
from pipelines.pair.build import CORPUS


@pytest.fixture(scope="module")
def frozen() -> list[corpus.Document]:
    return corpus.load(CORPUS)


def test_files_belong_to_one_split_and_repeat_no_document(frozen: list[corpus.Document]) -> None:
    """And every domain is trained on and held out."""
    splits = defaultdict(set)
    for document in frozen:
        splits[document.source].add(document.split)
    assert {split for found in splits.values() for split in found} == {split for split, _ in corpus.SPLITS}
    assert all(len(found) == 1 for found in splits.values())
    assert len({document.text for document in frozen}) == len(frozen)
    assert {(d.domain, d.trained) for d in frozen} == {(d, t) for d in corpus.QUOTA for t in (True, False)}
