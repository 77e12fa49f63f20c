"""The shipped prompts: enough of each, of disjoint files, and what the training did or did not see."""

import json
from functools import cache

import pytest

from pipelines.pair import corpus
from pipelines.pair.build import CORPUS, PROMPTS

FOLDERS = {"bench": ".", "harvest": "harvest"}
CASES = [(use, domain) for use in FOLDERS for domain in corpus.QUOTA]


@cache
def documents() -> list[corpus.Document]:
    return corpus.load(CORPUS)


def shipped(use: str, domain: str) -> list[dict]:
    return [json.loads(line) for line in (PROMPTS / FOLDERS[use] / f"{domain}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("use", "domain"), CASES)
def test_prompts_begin_documents_of_their_split(use: str, domain: str) -> None:
    texts = {}
    for document in documents():
        if document.domain == domain and document.split.startswith(use):
            texts.setdefault(document.split, []).append(document.text)
    prompts = shipped(use, domain)
    assert len(prompts) >= 80
    assert {prompt["category"] for prompt in prompts} == {"known", "heldout"}
    for prompt in prompts:
        assert any(text.startswith(prompt["turns"][0]) for text in texts[f"{use}_{prompt['category']}"])


@pytest.mark.parametrize("domain", corpus.QUOTA)
def test_harvest_and_bench_share_no_prompt(domain: str) -> None:
    bench, harvest = ({prompt["turns"][0] for prompt in shipped(use, domain)} for use in FOLDERS)
    assert not bench & harvest
