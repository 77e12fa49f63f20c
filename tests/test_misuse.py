"""Wrong arguments of everything that people call from Python: InputError, or Python's own TypeError, in one clear line,
and never what a wrong value would be taken for."""

import contextlib
import math
import warnings
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

import c2t
from c2t import C2T, Eagle2, Grammar, InputError, SpeculativeDecoder, TreeClassifier, show
from c2t.batching import BatchDecoder
from c2t.classifier import ClassifierConfig
from c2t.hf import TreeDecoding
from c2t.models.loading.load import load_pair
from c2t.policies import POLICIES, Budget, Hierarchical, MedusaTree
from c2t.policies.medusa_tree import Accuracies
from c2t.sampling import Sampling
from c2t.study.bench import BenchSettings

# Without checks of types, which would answer before c2t does: `make test` runs slow tests so.
pytestmark = pytest.mark.slow


class Nothing:
    """Something that nobody asked for."""


NEVER = [Nothing(), Nothing, b"ab", {"a": 1}, {1}, lambda: 0, 1j, torch.ones(2), np.ones(2)]  # right for no argument
NO_NUMBER = [*NEVER, True, False, "5", [1], (), math.nan]
NO_WHOLE = [*NO_NUMBER, None, 1.5, math.inf, -math.inf]
NO_COUNT = [*NO_WHOLE, 0, -1, -(10**30)]
NO_TRUTH = [*NEVER, "no", "", 0, 1, None, []]
NO_POLICY = [*NEVER, True, 5, "eagle", Eagle2, [], math.nan]
NO_PLACE = [*NEVER, True, 5, 1.5, []]
NO_TEXTS = [*NEVER, True, 5, None, Path("a"), math.nan]
NO_PROMPTS = [*NO_TEXTS, [], [[]], (), range(0), [1.5], [[1.5]], [-1], [10**9], [10**30], [None], [True], ["a", 1]]
NO_PROMPTS += [[1, "a"], [["a", "b"]], [Path("a")], [Nothing()], [torch.tensor(5)], [{"input_ids": [1]}], iter([1])]
NO_PROMPTS += [{"role": "user", "content": "a"}, [{"role": "user", "content": "a"}, "a"], [[{"role": "user"}]]]
NO_PROMPTS += [torch.ones(2, 2, 2).long(), torch.tensor([]), torch.tensor(5), np.array([[1.0]]), ["a", [1.0]]]


@pytest.fixture(scope="module")
def given() -> SimpleNamespace:
    decoder, steps = SpeculativeDecoder.from_pretrained("tiny"), []
    decoder.generate([[1, 2, 3]], max_new_tokens=3, watch=steps.append)
    pair = decoder.pair
    return SimpleNamespace(
        decoder=decoder,
        pair=pair,
        model=pair.target.model,
        classifier=TreeClassifier.from_pretrained("tiny"),
        batch=BatchDecoder(pair, Eagle2()),
        step=steps[-1],
    )


# Function of what is given -> the wrong values of each argument, the first one by "" .
CALLS = {
    "generate": (
        lambda given: partial(given.decoder.generate, "a", max_new_tokens=1),
        {
            "max_new_tokens": [*NO_COUNT, 10**6],
            "temperature": [*NO_NUMBER, None, -1, 1e-9, math.inf],
            "top_k": [*NO_WHOLE, -1],
            "top_p": [*NO_NUMBER, None, 0, -1, 1.5, math.inf],
            "min_p": [*NO_NUMBER, None, -1, 1.5, math.inf],
            "repetition_penalty": [*NO_NUMBER, None, 0, -1, math.inf],
            "seed": [value for value in NO_WHOLE if value is not None],
            "system": [*NEVER, 5, "a"],
            "stop": [*NEVER, 5, None, "", [""], [5], ["a"] * 10**5],
            "frequency_penalty": [*NO_NUMBER, None, 3, -1e9, math.inf],
            "presence_penalty": [*NO_NUMBER, None, 3, -1e9, math.inf],
            "logit_bias": [*NEVER, True, 5, "a", None, [1], (1,), ((1, 2, 3),), {1: "a"}, {10**9: 1.0}, {1.5: 1}],
            "logprobs": [*(value for value in NO_WHOLE if value is not None), -1, 21, 10**30],
            "chat": NO_TRUTH,
            "rule": [*NO_NUMBER, 0, 5, "", "nothing"],
            "sequences": [*NEVER, True, 5, "a", [], [1, 2], [True], [1.5], [None], [10**30], iter([1])],
            "constraint": [*NEVER, 5, "a", [], [5], [None, None]],
            "watch": [5, "print", None, []],
            "banana": [1],
        },
    ),
    "stream": (
        lambda given: lambda **wrong: list(given.decoder.stream("a", **{"max_new_tokens": 1} | wrong)),
        {
            "max_new_tokens": NO_COUNT,
            "temperature": [True, "1", -1, math.nan],
            "logit_bias": [5, {10**9: 1.0}, {1: math.nan}],
            "constraint": [*NEVER, 5, "a", [None]],
            "seed": [True, 1.5],
            "chat": NO_TRUTH,
            "rule": [0, "", []],
            "max_rows": [*NO_COUNT, 10**30],
            "max_tokens": [*NO_COUNT, 1],
        },
    ),
    "generate's prompts": (lambda given: partial(given.decoder.generate, max_new_tokens=1), {"": NO_PROMPTS}),
    "encode": (lambda given: given.decoder.encode, {"": NO_PROMPTS}),
    "stream of": (
        lambda given: lambda prompt: list(given.decoder.stream(iter([prompt]), 1)),
        {"": [*NO_TEXTS, [], ["a"], [[1]]]},
    ),
    "warm_up": (lambda given: given.decoder.warm_up, {"rows": NO_COUNT}),
    "submit": (
        lambda given: partial(given.batch.submit, [1], max_new_tokens=1),
        {
            "max_new_tokens": NO_COUNT,
            "sampling": [*NEVER, 5, None, "a", 0.7, Sampling(logit_bias={10**9: 1.0})],
            "logprobs": [True, "5", 1.5, -1, 21],
            "prompt_logprobs": [True, "5", 1.5, -1, 21],
            "constraint": [*NEVER, 5, "a", [None]],
            "sequence": [*NO_WHOLE, 10**30],
            "eos": [b"ab", "a", 5, [1], {1.5}, {"a"}, {True}, Nothing()],
        },
    ),
    "submit's prompt": (lambda given: partial(given.batch.submit, max_new_tokens=1), {"": [*NO_TEXTS, [], "a", [[1]]]}),
    "cancel": (lambda given: given.batch.cancel, {"": [*NEVER, 5, None, "a"]}),
    "BatchDecoder": (
        lambda given: lambda **wrong: BatchDecoder(**{"pair": given.pair, "policy": Eagle2()} | wrong),
        {
            "pair": [*NEVER, None, "tiny"],
            "policy": [*NO_POLICY, None],
            "max_rows": [*NO_COUNT, 10**30],
            "max_tokens": NO_COUNT,
            "max_waiting": NO_COUNT,
            "rule": [0, "", [], "nothing"],
        },
    ),
    "SpeculativeDecoder": (
        lambda given: lambda **wrong: SpeculativeDecoder(**{"pair": given.pair, "policy": Eagle2()} | wrong),
        {
            "pair": [*NEVER, None, "tiny"],
            "policy": [*NO_POLICY, None],
            "graph_tokens": [*NO_WHOLE, -1],
            "budget": [*NEVER, True, 0, -1, 1.5, "", "nowhere.json"],
        },
    ),
    "from_pretrained": (
        lambda given: lambda **wrong: SpeculativeDecoder.from_pretrained(**{"pair": "tiny"} | wrong),
        {
            "pair": [*NO_PLACE, "", "nowhere", "."],
            "target": [*NO_PLACE, "", "nowhere"],
            "draft": [*NO_PLACE, "", "nowhere"],
            "policy": NO_POLICY,
            "device": [*NEVER, "", "banana", "meta", math.nan, 99],
            "dtype": [*NEVER, True, 16, "float31", "float32", [], torch.bool],
            "device_map": [*(value for value in NEVER if not isinstance(value, dict)), True, 5, []],
            "trust_remote_code": NO_TRUTH,
            "banana": [1],
        },
    ),
    "load_pair": (
        lambda given: partial(load_pair, "tiny"),
        {"tensor_parallel": NO_TRUTH, "trust_remote_code": NO_TRUTH},
    ),
    "TreeDecoding": (
        lambda given: lambda **wrong: TreeDecoding(**{"draft": "tiny"} | wrong),
        {
            "draft": [*NO_PLACE, "", "nowhere", None],
            "policy": NO_POLICY,
            "classifier": [*NO_PLACE, "", "nowhere"],
            "beta": [*NO_NUMBER, 0, 1, -1, math.inf],
            "seed": [value for value in NO_WHOLE if value is not None],
            "streamer": [*NEVER, 5, "a", print],
            "trust_remote_code": NO_TRUTH,
        },
    ),
    "generate of transformers": (
        lambda given: partial(
            given.model.generate, torch.tensor([[1, 2]]), max_new_tokens=1, custom_generate=TreeDecoding("tiny")
        ),
        {"assistant_model": [*NEVER, 5, "a"]},
    ),
    "TreeClassifier": (lambda given: TreeClassifier, {"config": [*NEVER, 5, None, "tiny"]}),
    "TreeClassifier.from_pretrained": (
        lambda given: lambda **wrong: TreeClassifier.from_pretrained(**{"reference": "tiny"} | wrong),
        {"reference": [*NO_PLACE, None, "", "nowhere"], "device": [*NEVER, "", "banana", math.nan, 99]},
    ),
    "TreeClassifier()": (lambda given: given.classifier, {"": [*NEVER, 5, None, "a"]}),
    "save_pretrained": (lambda given: given.classifier.save_pretrained, {"": [*NEVER, 5, None]}),
    "ClassifierConfig": (
        lambda given: ClassifierConfig,
        {
            **{name: NO_COUNT for name in ("hidden", "layers")},
            "features": [*NEVER, 5, (), ["depth"], ("nothing",), ("depth", "depth")],
            "beta": [*NO_NUMBER, 0, 2],
            "label": [*NEVER, 5],
        },
    ),
    "BenchSettings": (
        lambda given: BenchSettings,
        {"max_new_tokens": NO_COUNT, "limit": [value for value in NO_COUNT if value is not None]},
    ),
    "show": (
        lambda given: lambda **wrong: show(**{"shown": given.step} | wrong),
        {
            "shown": [*NEVER, 5, None, "a"],
            "tokenizer": [value for value in [*NEVER, 5, "a", []] if not hasattr(value, "decode")],
            "row": [*NO_WHOLE, -1, 1],
        },
    ),
    "Grammar.json_schema": (
        lambda given: Grammar.json_schema,
        {"": [*(value for value in NEVER if not isinstance(value, dict)), 5, None, False, "{", [1]]},
    ),
    "Grammar.regex": (lambda given: Grammar.regex, {"": [*NEVER, 5, None]}),
    "Grammar.lark": (lambda given: Grammar.lark, {"": [*NEVER, 5, None]}),
    "Grammar.choice": (lambda given: Grammar.choice, {"": [*NEVER, 5, None, "a", [], [""], [5]]}),
    "Sampling": (
        lambda given: Sampling,
        {"temperature": [True, False], "top_p": [True], "repetition_penalty": [True], "seed": [True], "top_k": [True]},
    ),
}


def refused(call, *arguments, **named) -> str:
    """Return what is wrong with the answer to a wrong call, "" if it is a clear refusal."""
    try:
        with warnings.catch_warnings(action="ignore"):
            call(*arguments, **named)
    except TypeCheckError:  # of the checks that the quick tests run under
        return ""
    except (InputError, TypeError) as error:
        text = str(error)
        clear = isinstance(error, InputError) or "argument" in text or "expected str" in text or "missing" in text
        return "" if clear and "\n" not in text and len(text) < 400 else f"said {type(error).__name__}: {text}"
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the fault looked for)
        return f"raised {type(error).__name__}: {error}"
    return "was taken"


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_in_one_line(given, name: str) -> None:
    make, arguments = CALLS[name]
    call = make(given)
    found = {
        f"{argument} = {value!r}": refused(call, value) if not argument else refused(call, **{argument: value})
        for argument, values in arguments.items()
        for value in values
    }
    assert not {case: said for case, said in found.items() if said}


NEEDED = {
    C2T: lambda given: {"classifier": given.classifier},
    MedusaTree: lambda given: {"accuracies": Accuracies(((0.5, 0.2), (0.4,)), "measured")},
    POLICIES["sequoia"]: lambda given: {"acceptance": (0.5, 0.2)},
    Budget: lambda given: {"policy": Eagle2(), "nodes": 8},
    Hierarchical: lambda given: {"policy": Eagle2(K=2, levels=2, N=4)},
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_wrong_setting_of_a_policy_is_refused_in_one_line(given, name: str) -> None:
    kind = POLICIES[name]
    right = NEEDED.get(kind, lambda given: {})(given)
    kind(**right)
    found = {}
    for setting in fields(kind):
        wrong = [value for value in NEVER if setting.name != "branching" or not callable(value)]
        wrong += [*([] if setting.type is bool else [True, False]), -1, -0.5, math.nan, -math.inf, [1], -(10**30)]
        found |= {f"{setting.name} = {value!r}": refused(kind, **right | {setting.name: value}) for value in wrong}
    found["banana"] = refused(kind, **right, banana=1)
    assert not {case: said for case, said in found.items() if said}


def test_everything_public_is_called_here() -> None:
    called = {"Grammar", "SpeculativeDecoder", "TreeClassifier", "load_pair", "show"}
    policies = {"POLICIES", *(kind.__name__ for kind in POLICIES.values())} & set(c2t.__all__)
    assert set(c2t.__all__) == called | policies | {"InputError", "Output"}  # which nobody makes


def test_numbers_of_numpy_are_numbers(given) -> None:
    """What is refused are wrong values, not unusual types of right ones."""
    text = given.decoder.generate("a", 3, temperature=0.5, seed=1).text
    with contextlib.suppress(TypeCheckError):
        numpy = {"temperature": np.float64(0.5), "seed": np.int32(1), "top_p": np.float32(1)}
        assert given.decoder.generate("a", np.int64(3), **numpy).text == text
