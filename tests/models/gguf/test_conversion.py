"""A GGUF file is the model that it was made of: weights, config, tokenizer, and text."""

from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from c2t import SpeculativeDecoder
from c2t.errors import InputError
from c2t.models.gguf.blocks import NAMED, dequantized
from c2t.models.gguf.config import config_of
from c2t.models.gguf.conversion import converted
from c2t.models.gguf.reader import read_header
from c2t.policies import Plain
from tests.marks import slow_except
from tests.models.gguf.small_files import CONFIGS, random_blocks, write
from tests.rounding import assert_within, growth

# Two layers of some 500 roundings each in sequence, whose errors those after them enlarge at most 100-fold.
NETWORK = 100 * growth(1000)
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 64}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("kind", [name for name, kind in NAMED.items() if kind.dtype is None])
def test_blocks_stand_for_the_weights_that_the_format_says(kind: str) -> None:
    """gguf computes the same products in another order: the largest of a row bounds the difference."""
    rows, quantised = random_blocks(kind, 3, 512)
    expected = torch.from_numpy(gguf.dequantize(rows, quantised))
    weights = dequantized(torch.from_numpy(rows), NAMED[kind])
    assert weights.shape == (3, 512)
    assert_within(weights, expected, growth(4) * expected.abs().max())


@pytest.mark.parametrize("name", slow_except(CONFIGS, "llama", "gemma3"))
def test_a_file_is_the_model_that_it_was_made_of(name: str, tmp_path: Path) -> None:
    model = write(tmp_path / "a.gguf", name)
    with pytest.warns(UserWarning, match="converting"):
        folder = converted(tmp_path / "a.gguf")
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.arange(3, 40)[None]
    if name == "gemma3":  # whose norms are stored as 1 more, which rounds
        assert_within(read(tokens).logits, logits := model(tokens).logits, NETWORK * logits.abs().max())
    else:
        weights = read.state_dict()
        assert all(weights[key].equal(weight) for key, weight in model.state_dict().items())
        assert read(tokens).logits.equal(model(tokens).logits)
    assert converted(tmp_path / "a.gguf") == folder, "once"


def test_the_tokenizer_and_the_template_come_along(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", "qwen2")
    with pytest.warns(UserWarning, match="converting"):
        tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path / "a.gguf"))
    text = "the theme,  é\n12 😀</s>"
    ids = tokenizer(text).input_ids
    assert tokenizer.convert_ids_to_tokens(ids)[:2] == ["the", "Ġthe"]
    assert tokenizer.decode(ids) == text
    assert ids[-1] == tokenizer.eos_token_id == 2
    said = tokenizer.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert said == "<s>the</s>"


@pytest.mark.filterwarnings("ignore:converting")
def test_a_file_decodes_by_its_name(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", "llama")
    decoder = SpeculativeDecoder.from_pretrained(tmp_path / "a.gguf")
    assert decoder.pair.name == "a"
    assert decoder.pair.draft.has_ngrams
    text = decoder.generate("the the the", max_new_tokens=12)
    plain = SpeculativeDecoder(decoder.pair, Plain()).generate("the the the", max_new_tokens=12)
    assert text.sequences == plain.sequences


@pytest.mark.parametrize(
    ("name", "changes", "rope"),
    [
        ("llama", {"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ("llama", {"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ("llama", {"type": "none", "factor": 4.0}, {"rope_type": "default"}),
        ("llama", {"type": "linear"}, {"rope_type": "default"}),
        ("qwen2", YARN | {"yarn_beta_fast": 16.0}, {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0}),
    ],
)
def test_how_rope_is_stretched(name: str, changes: dict, rope: dict, tmp_path: Path) -> None:
    """As llama.cpp reads it: a factor alone is linear, also under its old name."""
    prefix = {key: f"{name}.rope.{key}" if key == "scale_linear" else f"{name}.rope.scaling.{key}" for key in changes}
    write(tmp_path / "a.gguf", name, **{prefix[key]: value for key, value in changes.items()})
    assert config_of(read_header(tmp_path / "a.gguf")).rope_parameters.items() >= rope.items()


def test_a_stretch_that_a_family_does_not_have_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", "phi3", **{f"phi3.rope.scaling.{key}": value for key, value in YARN.items()})
    with pytest.raises(InputError, match="its entries make no config"):
        config_of(read_header(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split.count": 3}, "one of several parts of a model: join them"),
        (
            {f"llama.rope.scaling.{key}": value for key, value in (YARN | {"yarn_attn_factor": 0.5}).items()},
            "yarn_attn_factor: c2t does not run models with that",
        ),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.block_count": 3}, "weights are missing"),
        ({"llama.embedding_length": 32}, "its entries say"),
        ({"llama.attention.head_count": 0}, "must be a whole number from 1"),
        ({"llama.expert_count": 8}, "does not run models with that"),
        ({"llama.rope.scaling.type": "strange", "llama.rope.scaling.factor": 2.0}, "which c2t does not know"),
        ({"tokenizer.ggml.model": "bert"}, "a tokenizer of the kind 'bert'"),
        ({"tokenizer.ggml.merges": ["t h e"]}, "merges to no token"),
        ({"tokenizer.ggml.merges": None}, "its tokenizer has no merges"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "2 tokens, and 300 of token_type"),
        ({"tokenizer.ggml.bos_token_id": 10_000}, "bos_token_id = 10000 of 300 tokens"),
        ({"tokenizer.ggml.pre": "strange"}, "its tokenizer splits texts as 'strange'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    changes: dict, message: str, tmp_path: Path, cache: Path, recwarn: pytest.WarningsRecorder
) -> None:
    write(tmp_path / "a.gguf", "llama", **changes)
    with pytest.raises(InputError, match=message):
        converted(tmp_path / "a.gguf")
    assert not list(cache.rglob("*.safetensors"))
    assert not list(cache.rglob("config.json"))


def test_a_disk_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.gguf", "llama")
    monkeypatch.setattr("shutil.disk_usage", lambda _place: type("", (), {"free": 2**20}))
    with pytest.raises(InputError, match="1 MiB free, the converted target needs"):
        converted(tmp_path / "a.gguf")
