"""A pair of a few thousand random weights in the real formats (Llama target, byte-level BPE, EAGLE head on disk), and
the folders that the commands look into. Made once a session; the draft agrees with its target often, not always."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from c2t.models.drafts.eagle import EagleHead
from c2t.models.loading.eagle_checkpoint import save_head
from c2t.models.loading.load import Pair, load_pair

HIDDEN, VOCABULARY, POSITIONS = 32, 320, 768
TEXT = "def add(a, b):\n    return a + b\n\nThe sum of two numbers is a number. You are a helpful assistant.\n" * 4
TURNS = [f"{word} {number}" for number in range(6) for word in ("def add(a, b):", "The sum of", "a number is")]


def write_tokenizer(folder: Path, bos: str, eos: str) -> None:
    """Byte-level BPE; the text starts with `bos` if that differs from `eos`, as Llama's does."""
    specials = sorted({bos, eos})
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    if bos != eos:
        number = tokenizer.token_to_id(bos)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, number)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token=eos)
    wrapped.save_pretrained(folder)


def write_target(folder: Path, bos: str = "<|endoftext|>", eos: str = "<|endoftext|>", vocabulary: int = VOCABULARY):
    """A target whose next token depends mostly, not only, on the last one."""
    write_tokenizer(folder, bos, eos)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight)
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    model.lm_head.weight.data[tokenizer.eos_token_id] *= 0.2
    model.save_pretrained(folder)
    return model


def write_draft(folder: Path, hidden: int = HIDDEN, vocabulary: int = VOCABULARY, noise: float = 0.05) -> None:
    """A head that passes the embedding on; `noise` of the feature is what makes it err."""
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=vocabulary,
        pad_token_id=None,
    )
    head = EagleHead(config)
    for parameter in head.layers.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    head.fc.weight.data = torch.cat([torch.eye(hidden), noise * torch.randn(hidden, hidden)], 1)
    torch.nn.init.zeros_(head.fc.bias)
    save_head(head, folder)


def write_prompts(path: Path, turns: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"question_id": i, "category": ("known", "heldout")[i % 2], "turns": [turn]} for i, turn in enumerate(turns)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_pair(folder: Path, bos: str = "<|endoftext|>", eos: str = "<|endoftext|>") -> Path:
    write_target(folder / "target", bos, eos)
    write_draft(folder / "draft")
    return folder


@pytest.fixture(scope="session")
def small_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A $C2T_HOME with `tiny`, a plain pair, and `llama2-7b`, one with Llama's special tokens. Do not write here."""
    home = tmp_path_factory.mktemp("small")
    write_pair(home / "checkpoints" / "tiny")
    write_pair(home / "checkpoints" / "llama2-7b", "<s>", "</s>")
    write_prompts(home / "data" / "prompts" / "tiny" / "code.jsonl", TURNS[:8])
    write_prompts(home / "data" / "prompts" / "tiny" / "harvest" / "code.jsonl", TURNS)
    return home


@pytest.fixture
def home(small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `small_home` that the test may change, as $C2T_HOME."""
    shutil.copytree(small_home, tmp_path / "home")
    monkeypatch.setenv("C2T_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def small_pair(small_home: Path) -> Pair:
    """The plain pair, loaded in float64: exactness does not hang on rounding."""
    folder = small_home / "checkpoints" / "tiny"
    return load_pair(target=folder / "target", draft=folder / "draft", dtype=torch.float64)
