"""A target in a file's own blocks: what it computes, and when it is one."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from c2t import SpeculativeDecoder
from c2t.cli.app import app
from c2t.errors import InputError
from c2t.kernels.decoder_layers import Kind, NumbersMatrix, works
from c2t.models.gguf.conversion import converted
from c2t.models.gguf.stored import BLOCKS, stored_dtype
from c2t.models.loading.load import load_pair
from c2t.models.target.packed_model import PackedModel
from c2t.policies import Plain
from tests.models.gguf.small_files import MIXED, write
from tests.rounding import assert_within

pytestmark = pytest.mark.filterwarnings("ignore:converting", "ignore:.*this processor has no bf16")
needs_bytes = pytest.mark.skipif(Kind.INT8 not in works(), reason="this processor has no products of bytes")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "a.gguf", "wide", types=MIXED)
    return tmp_path / "a.gguf"


@needs_bytes
def test_a_files_blocks_are_what_is_computed_with(file: Path) -> None:
    decoder = SpeculativeDecoder.from_pretrained(target=file, draft="lookup")
    pair = decoder.pair
    assert pair.dtype == "int4"
    assert isinstance(pair.target.packed_lm_head, NumbersMatrix)
    layers = pair.target.packed.decoder.layers
    assert [layers.structs[0].qkv.kind, layers.structs[1].down.kind] == [Kind.INT4, Kind.INT4]
    assert load_pair(target=file, draft="lookup", dtype=torch.float32).dtype == "float32"
    attention = pair.target.model.model.layers[0].self_attn
    joined = torch.cat([linear.weight for linear in (attention.q_proj, attention.k_proj, attention.v_proj)])
    for matrix, weight in ((layers.reads, joined), (pair.target.packed_lm_head, pair.target.lm_head.weight)):
        found, weight = matrix(torch.eye(weight.shape[1])).T, weight.float()  # whose inputs are exact in 8 bits
        assert_within(weight, found, found.abs() * 2.0**-8, "the weights are the same, rounded to bf16")
    text = decoder.generate("the the the", max_new_tokens=20)
    assert text.sequences == SpeculativeDecoder(pair, Plain()).generate("the the the", max_new_tokens=20).sequences


@needs_bytes
def test_weights_that_are_not_the_files_any_more_are_refused(file: Path) -> None:
    target = load_pair(target=file, draft="lookup").target
    with torch.no_grad():
        target.model.model.layers[0].mlp.up_proj.weight.mul_(2)
    with pytest.raises(InputError, match="were changed, and are not those of its file: load it again"):
        target.session().prefill(torch.arange(3, 10)[None], torch.tensor([7]))


def test_elsewhere_the_blocks_become_numbers_and_a_line_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedModel, "why_not_rounded", lambda model: "a reason")
    with pytest.warns(UserWarning, match="its blocks become numbers in bfloat16 or float32: a reason"):
        pair = load_pair(target=file, draft="lookup")
    assert pair.dtype in ("float32", "bfloat16")


def test_types_decide_what_it_is_called(tmp_path: Path) -> None:
    for types, dtype in (({"": "Q8_0"}, torch.int8), ({"": "Q4_0"}, torch.int4), ({"": "Q5_1"}, None), (None, None)):
        write(tmp_path / "a.gguf", "wide", types=types)
        assert stored_dtype(converted(tmp_path / "a.gguf")) == dtype


@needs_bytes
def test_damaged_blocks_are_refused_in_one_line(file: Path) -> None:
    blocks = converted(file) / BLOCKS
    blocks.write_bytes(blocks.read_bytes()[:1000])
    with pytest.raises(InputError, match="damaged") as caught:
        load_pair(target=file, draft="lookup")
    assert "\n" not in str(caught.value)


def test_info_reads_the_header_alone_and_says_what_is_stored_in_what(file: Path) -> None:
    done = CliRunner().invoke(app, ["info", str(file)])
    assert done.exit_code == 0, done.stderr
    said = dict(line.strip().split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) > 1)
    assert said["attention"] == "Q4_1 in 5 bits, Q8_0 in 8.5 bits"
    assert said["MLP"] == "Q4_0 in 5 bits, Q4_1 in 5 bits"
    assert said["embedding"] == "rows in bfloat16, of Q5_0"
    assert said["LM"] == "head  Q8_0 in 8.5 bits" or said["LM"].endswith("Q8_0 in 8.5 bits")
    assert not (file.parent / "cache" / "gguf").exists()


@pytest.mark.parametrize("command", [["info"], ["generate", "the", "--target"]])
def test_a_file_that_cannot_be_read_is_one_line(command: list[str], tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", "wide", types=MIXED)
    (tmp_path / "a.gguf").write_bytes((tmp_path / "a.gguf").read_bytes()[:-1000])
    done = CliRunner().invoke(app, [*command, str(tmp_path / "a.gguf")])
    lines = [line for line in done.stderr.splitlines() if not line.startswith("draft:")]
    assert done.exit_code == 2
    assert len(lines) == 1
    assert "truncated" in lines[0]
