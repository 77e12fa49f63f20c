"""The default pair, a real model: it loads, answers in its chat template, and its text is transformers' own."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from c2t.cli.app import app
from c2t.decoder import SpeculativeDecoder
from c2t.kernels import decoder_layers
from c2t.kernels.decoder_layers import Kind
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.loading.load import Pair, load_pair
from c2t.policies.plain import Plain
from c2t.policies.threshold import JointThreshold
from c2t.replay.prompts import default_prompts, read_prompts
from c2t.storage.paths import DEFAULT_PAIR
from tests.marks import needs_smollm2

QUESTION = "What is the capital of France?"
pytestmark = needs_smollm2


@pytest.fixture(scope="module")
def pair() -> Pair:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "converting the target|.* was trained for other weights")
        return load_pair(dtype=torch.float32)


def said_by(*arguments: str | Path) -> dict:
    """The result line of a command on the default pair."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json", "-"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_it_is_the_default_pair_and_has_its_own_template(pair: Pair) -> None:
    assert DEFAULT_PAIR == pair.name == "smollm2"
    assert pair.template == "chat"
    text = pair.tokenizer.decode(SpeculativeDecoder(pair, JointThreshold()).encode(QUESTION)[0])
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith(f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.slow
def test_its_greedy_text_in_float32_is_that_of_transformers(pair: Pair) -> None:
    decoder = SpeculativeDecoder(pair, JointThreshold(0.05))
    asked = decoder.encode("Name three rivers of Europe, and say where each begins.")
    model = AutoModelForCausalLM.from_pretrained(pair.sources["target"][0], dtype=torch.float32)
    wanted = model.generate(torch.tensor(asked), max_new_tokens=24, do_sample=False)[0, len(asked[0]) :].tolist()
    output = decoder.generate(asked, max_new_tokens=24)
    assert output.sequences == [wanted]
    assert max(output.statistics[0].verified) > 4  # trees, not plain decoding


@pytest.mark.slow
def test_commands_take_it(tmp_path: Path) -> None:
    short = ["--max-new-tokens", "12"]
    written = said_by("generate", QUESTION, "--policy", "plain", *short)
    assert written["configuration"]["pair"] == "smollm2"
    assert written["figures"]["text"] == "The capital of France is Paris."
    benched = said_by("bench", "--policies", "plain", "--limit", "1", "--timed", "0", *short)
    assert (benched["configuration"]["pair"], benched["figures"]["prompts"]) == ("smollm2", 1)
    harvested = said_by("harvest", "--limit", "2", "--k", "4", "--levels", "3", *short, "--out", tmp_path / "rows")
    assert harvested["configuration"]["pair"] == "smollm2"
    assert harvested["figures"]["rows"] > 0


def test_the_prompts_of_bench_are_not_those_of_the_harvest() -> None:
    bench, harvest = (
        [prompt for path in default_prompts("smollm2", purpose) for prompt in read_prompts(path)]
        for purpose in ("bench", "harvest")
    )
    assert {prompt.category for prompt in bench} == {prompt.category for prompt in harvest}
    assert {tuple(p.turns) for p in bench}.isdisjoint(tuple(p.turns) for p in harvest)
    assert min(len(bench), len(harvest) // 4) > 50


@pytest.mark.slow
@pytest.mark.skipif(Kind.INT8 not in decoder_layers.works(), reason="this processor has no products of bytes")
@torch.inference_mode()
def test_its_head_in_bytes_writes_the_same_text_and_guesses_as_well(pair: Pair) -> None:
    rounded = replace(pair, draft=EagleDraft(pair.draft.head, pair.target.lm_head, rounded=True))
    assert rounded.draft.packed.parts.reader.matrix.kind == Kind.INT8
    asked = [prompt.turns[0] for file in default_prompts("smollm2", "bench") for prompt in read_prompts(file)[:4]]
    outputs = [SpeculativeDecoder(one, JointThreshold(0.05)).generate(asked, 48) for one in (pair, rounded)]
    assert outputs[1].sequences == outputs[0].sequences
    accepted = [sum(sum(each.accepted) for each in output.statistics) for output in outputs]
    assert abs(accepted[1] / accepted[0] - 1) < 0.05


@pytest.mark.slow
@pytest.mark.skipif(Kind.INT8 not in decoder_layers.works(), reason="this processor has no products of bytes")
@torch.inference_mode()
def test_in_int8_it_writes_one_text_with_a_tree_and_without_and_is_nearly_the_same_model(pair: Pair) -> None:
    rounded = load_pair("smollm2", dtype=torch.int8)
    asked = [prompt.turns[0] for file in default_prompts("smollm2", "bench") for prompt in read_prompts(file)[:4]]
    texts = [
        SpeculativeDecoder(rounded, policy).generate(asked, 48).sequences for policy in (Plain(), JointThreshold(0.05))
    ]
    assert texts[1] == texts[0]
    tokens, length = torch.tensor([texts[0][0]]), torch.tensor([len(texts[0][0])])
    states = [one.target.session().read(tokens, length)[0] for one in (pair, rounded)]
    exact, near = (
        one.target.logits(state[None])[0].log_softmax(-1) for one, state in zip((pair, rounded), states, strict=True)
    )
    divergence = (exact.exp() * (exact - near)).sum(-1).mean()
    assert 1e-5 < divergence < 0.03  # nats a token
