"""Whatever bytes come, every reader and parser returns a value or says in one line what is wrong (InputError)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.cli.info import parameters
from c2t.errors import InputError
from c2t.models.loading.checkpoint_files import Generation, Sizes, Tokenizer, check_files
from c2t.models.loading.eagle_checkpoint import load_head
from c2t.policies.spec import parse, split
from c2t.records.schema import Manifest, Shard
from c2t.replay.prompts import read_prompts
from c2t.storage.checked import from_json
from c2t.study import acceptance, autotune_cache, points, sweep
from tests.eagle_reference import CONFIG, head_state, write_head

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**12, 2**63, 10**400, -1, 0, True])
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=20)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner))


def value_or_line(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except InputError as error:
        refused = error
    assert len(str(refused).splitlines()) == 1, refused
    return refused


def documents(valid: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Return bytes, other JSON, and the valid document with one entry changed, taken away, or a byte flipped."""
    text = json.dumps(valid).encode()
    changed = st.tuples(st.sampled_from(sorted(valid)), VALUES).map(
        lambda one: json.dumps(valid | dict([one])).encode()
    )
    lacking = st.sampled_from(sorted(valid)).map(
        lambda name: json.dumps({key: value for key, value in valid.items() if key != name}).encode()
    )
    flipped = st.tuples(st.integers(0, len(text) - 1), st.integers(0, 255)).map(
        lambda one: text[: one[0]] + bytes([one[1]]) + text[one[0] + 1 :]
    )
    cut = st.integers(0, len(text)).map(lambda length: text[:length])
    return (
        st.binary(max_size=200)
        | VALUES.map(lambda value: json.dumps(value).encode())
        | changed
        | lacking
        | flipped
        | cut
    )


CLASSIFIER = {"features": ["joint_prob", "entropy", "depth"], "hidden": 48, "layers": 2, "M": 5, "negatives_kept": 0.5}
MANIFEST = {
    **{"schema_version": 1, "rows": 3, "trees": 1, "positives": 1, "prompts": [{}], "shards": {"a": 3}},
    "provenance": {"M": 1000, "K": 10, "levels": 11, "pair": "tiny"},
}
SHARD = {
    **{"schema_version": 1, "rows": 3, "positives": 1, "prompts": [0, 1], "trees": [0, 2], "prompt_list": "a"},
    **{"columns": {"tree": "uint32"}, "provenance": MANIFEST["provenance"]},
}
POINT = {
    "command": "sweep point",
    "figures": {
        **{"family": "c2t", "policy": "c2t", "label": "c2t", "classifier": None},
        **{"rounds": [3], "accepted": [1], "verified": [9], "passes": [3]},
    },
    "configuration": {
        **{"pair": "tiny", "target": "a", "draft": "b", "draft_name": "c", "dtype": "float32", "temperature": 0.0},
        **{"seed": 0, "max_new_tokens": 4, "rule": None, "files": ["x"], "prompts": 1, "texts": "d"},
    },
}


SCHEMAS = {
    ClassifierConfig: CLASSIFIER,
    Manifest: MANIFEST,
    Shard: SHARD,
    Sizes: {"hidden_size": 3, "vocab_size": 5},
    Tokenizer: {"model_max_length": 768},
    Generation: {"eos_token_id": [1, 2]},
    autotune_cache._TunedFile: {"key": {}},
    list[acceptance._StoredRates]: {"rates": [0.5]},
}


@pytest.mark.parametrize("kind", SCHEMAS)
@QUICK
@given(data=st.data())
def test_schemas(kind: Any, data: st.DataObject) -> None:
    valid = SCHEMAS[kind]
    value_or_line(from_json, kind, data.draw(documents(valid)), "a.json")


@QUICK
@given(
    text=documents({"turns": ["a", "b"], "question_id": 1, "category": "x"}) | st.lists(VALUES).map(str).map(str.encode)
)
def test_prompts(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "p.jsonl").write_bytes(text)
    value_or_line(read_prompts, tmp_path / "p.jsonl")


@QUICK
@given(text=st.lists(documents(POINT), max_size=3).map(b"\n".join))
def test_points(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "p.jsonl").write_bytes(text)
    found = value_or_line(points.read_points, tmp_path / "p.jsonl")
    for several in found.values() if isinstance(found, dict) else ():
        assert all(point.tau >= 0 and point.gamma > 0 for point in several)


@QUICK
@given(figures=documents(POINT["figures"]), configuration=documents(POINT["configuration"]))
def test_parts_of_points(tmp_path: Path, figures: bytes, configuration: bytes) -> None:
    line = b'{"command": "sweep point", "figures": %s, "configuration": %s}\n' % (figures, configuration)
    (tmp_path / "p.jsonl").write_bytes(line)
    value_or_line(points.read_points, tmp_path / "p.jsonl")


@QUICK
@given(text=documents({**CONFIG}))
def test_heads(tmp_path: Path, text: bytes) -> None:
    folder = write_head(tmp_path / "head", CONFIG, head_state(CONFIG))
    (folder / "config.json").write_bytes(text)
    value_or_line(load_head, folder, nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"]))


@QUICK
@given(text=documents({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "auto_map": {}}))
def test_files_of_language_models(tmp_path: Path, text: bytes) -> None:
    save_file({"x": nn.Linear(3, 3).weight.detach()}, tmp_path / "model.safetensors")
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes(text)
    value_or_line(check_files, tmp_path, False)


@QUICK
@given(place=st.floats(0, 1), byte=st.integers(0, 255), length=st.floats(0, 1) | st.none())
def test_safetensors(tmp_path: Path, place: float, byte: int, length: float | None) -> None:
    TreeClassifier().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    at = int(place * (len(whole) - 1))
    broken = whole[:at] + bytes([byte]) + whole[at + 1 :]
    path.write_bytes(broken if length is None else broken[: int(length * len(broken))])
    value_or_line(TreeClassifier.from_pretrained, tmp_path)
    value_or_line(parameters, tmp_path)


SPECS = st.text(max_size=40) | st.builds(
    "{}:{}={},{}={}".format,
    st.sampled_from(["eagle2", "c2t", "specinfer", "mcsd+", "dyspec", "sequoia", "entropy", "chain", "nobody"]),
    st.sampled_from(["K", "N", "levels", "config", "M", "W", "acceptance", "temperature", "length", "branching", ""]),
    LEAVES | st.sampled_from(["4x2", "1x" * 50, "none", "trained", "1e400", "-0", "nan"]),
    st.sampled_from(["K", "N", "levels", "beta", "threshold", "passes"]),
    LEAVES,
)


@QUICK
@given(text=SPECS)
def test_policies(text: str) -> None:
    for spec in split(text):
        value_or_line(parse, spec, TreeClassifier)
    value_or_line(sweep.expand, text)
