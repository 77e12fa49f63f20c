"""vLLM's --speculative-config: what c2t has is understood, the rest is refused by name."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from c2t.cli.app import app
from c2t.cli.speculative_config import read_speculative_config
from c2t.errors import InputError


@pytest.mark.parametrize(
    ("config", "draft", "policy"),
    [
        (
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
            "lookup",
            "threshold:threshold=0.1,levels=5",
        ),
        ({"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}, "a/b", "threshold:threshold=0.1,levels=3"),
        ({"method": "medusa", "draft_tensor_parallel_size": 1}, "medusa", None),
        ({"model": "folder"}, "folder", None),
    ],
)
def test_what_c2t_has_is_understood(config: dict[str, Any], draft: str, policy: str | None) -> None:
    assert read_speculative_config(json.dumps(config)) == (draft, policy)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is no JSON"),
        ("[" * 10**5, "it is no JSON"),
        ("[]", "it must be a JSON object"),
        ("{}", r"give a method \(ngram, eagle, eagle3, medusa\) or a model"),
        ('{"method": "mtp"}', """c2t serve does not support method "mtp": Input should be 'ngram'"""),
        ('{"method": "ngram", "model": "a"}', "ngram has no model"),
        ('{"method": "eagle", "quantization": "fp8"}', "c2t serve does not support quantization"),
        ('{"method": "eagle", "draft_tensor_parallel_size": 2}', "c2t serve does not support draft_tensor_parallel"),
        ('{"method": "eagle", "num_speculative_tokens": 0}', "num_speculative_tokens: Input should be greater"),
    ],
)
def test_the_rest_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InputError, match=f"--speculative-config: {said}"):
        read_speculative_config(text)


@pytest.mark.parametrize("option", ["--draft", "--policy"])
def test_what_it_says_is_not_said_twice(option: str) -> None:
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 2})
    done = CliRunner().invoke(app, ["serve", "--pair", "tiny", "--speculative-config", config, option, "lookup"])
    assert done.exit_code == 2
    assert f"{option} and --speculative-config say the same" in done.stderr
