"""The sets of prompts that are made here, and those that are read."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from c2t.errors import InputError
from c2t.models.loading.load_target import read_tokenizer
from c2t.storage.paths import find
from pipelines.bench.prompt_sets.problems import OF_EACH, REQUEST
from pipelines.bench.prompt_sets.sets import FOLDERS, MADE, NAMES, made, prompt_sets
from tests.marks import needs_smollm2


@pytest.mark.parametrize("name", MADE)
def test_a_set_is_large_and_the_same_every_time(name: str) -> None:
    prompts = made(name)
    assert len({prompt.turns[0] for prompt in prompts}) == len(prompts) >= 84
    assert len({prompt.category for prompt in prompts}) >= 5
    assert made(name) == prompts
    assert {prompt.file for prompt in prompts} == {name}


def test_functions_come_with_tests_of_one_function() -> None:
    for prompt in made("functions"):
        task, _, tests = prompt.turns[0].partition("\n\n")
        asserts = ast.parse(tests).body
        assert 2 <= len(asserts) <= 3
        assert len({line.test.left.func.id for line in asserts}) == 1
        assert all(ast.literal_eval(line.test.comparators[0]) is not NotImplemented for line in asserts)
        assert "{" not in task


def test_problems_ask_for_steps_and_differ_in_their_numbers() -> None:
    texts = [prompt.turns[0] for prompt in made("problems")]
    assert all(text.endswith(REQUEST) for text in texts)
    wordings = Counter("".join(letter for letter in text if not letter.isdigit() and letter != "-") for text in texts)
    assert min(wordings.values()) >= OF_EACH


def test_languages_share_no_wording() -> None:
    prompts = made("languages")
    assert set(Counter(prompt.category for prompt in prompts).values()) == {10}
    assert len({prompt.category for prompt in prompts}) >= 8


@needs_smollm2
def test_documents_have_one_to_four_thousand_tokens() -> None:
    tokenizer = read_tokenizer(str(find("smollm2", "target")), False)
    lengths = [len(tokenizer(prompt.turns[0])["input_ids"]) for prompt in made("documents")]
    assert 1000 <= min(lengths) < 1500
    assert 3500 < max(lengths) <= 4000


def test_a_set_is_read_only_if_it_is_named(tmp_path: Path) -> None:
    assert list(prompt_sets(list(MADE), None)) == list(MADE)
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "question.jsonl").write_text('{"turns": ["How many?"]}\n')
    sets = prompt_sets(["problems", "gsm8k"], tmp_path)
    assert [prompt.turns for prompt in sets["gsm8k"]] == [["How many?"]]
    with pytest.raises(InputError, match="'mbpp' is none of the sets: " + ", ".join(NAMES)):
        prompt_sets(["mbpp"], tmp_path)
    with pytest.raises(InputError, match=f"--data is missing: the folder that {FOLDERS[2]}/"):
        prompt_sets([FOLDERS[2]], None)
