"""The shipped prompts: enough of each, of disjoint files, and what the training did or did not see."""

import json
from functools import cache

import pytest
from transformers import AutoTokenizer

from pipelines.pair import corpus
from pipelines.pair.build import CORPUS, PROMPTS
from pipelines.pair.prompts import CONTINUATION_TOKENS, FOLDERS, PROMPT_TOKENS, prompt_set
from pipelines.pair.recipes import PAIRS

OUT = PAIRS["tiny"].out
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


def test_a_prompt_leaves_a_continuation_and_is_made_again_the_same() -> None:
    tokenizer = AutoTokenizer.from_pretrained(OUT / "target")
    assert prompt_set(documents(), tokenizer, "code", "bench") == shipped("bench", "code")
    for prompt in shipped("bench", "code"):
        [text] = prompt["turns"]
        whole = next(d.text for d in documents() if d.text.startswith(text))
        given = len(tokenizer(text, add_special_tokens=False).input_ids)
        assert PROMPT_TOKENS[0] <= given <= PROMPT_TOKENS[1]
        rest = tokenizer(whole[len(text) :], add_special_tokens=False, verbose=False).input_ids
        assert len(rest) >= CONTINUATION_TOKENS
