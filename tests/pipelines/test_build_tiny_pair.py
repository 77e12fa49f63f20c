"""The committed pair: sizes and formats that the project promises."""

import pytest
import torch
from safetensors import safe_open

from pipelines.build_tiny_pair import HEADS, OUT, STAGES, Stage

MB = 1_000_000


def test_all_is_a_stage_and_stages_have_names() -> None:
    assert set(Stage) == {*STAGES, "all"}


def test_weights_are_small_bf16_shards() -> None:
    files = list(OUT.rglob("*.safetensors"))
    assert files
    assert all(path.stat().st_size <= 12.1 * MB for path in files)
    assert sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file()) <= 30 * MB
    for path in (path for path in files if path.parent.name != "classifier"):
        with safe_open(path, "pt") as stored:
            assert {stored.get_tensor(name).dtype for name in stored.keys()} == {torch.bfloat16}  # noqa: SIM118


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_in_upstreams_format_without_embedding(name: str) -> None:
    with safe_open(OUT / name / "model.safetensors", "pt") as stored:
        names = set(stored.keys())
    assert len(names) == 10
    assert {"fc.weight", "fc.bias", "layers.0.post_attention_layernorm.weight"} < names
