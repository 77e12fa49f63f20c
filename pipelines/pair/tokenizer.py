"""Byte-level BPE with one special token that begins every document and ends every text."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SEPARATOR = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on these texts."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[SEPARATOR], initial_alphabet=alphabet)
    bpe.train_from_iterator(texts, trainer)
    begin = (SEPARATOR, bpe.token_to_id(SEPARATOR))
    bpe.post_processor = processors.TemplateProcessing(single=f"{SEPARATOR} $A", special_tokens=[begin])
    assert bpe.get_vocab_size() == vocabulary
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=SEPARATOR, eos_token=SEPARATOR, pad_token=SEPARATOR, model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def save_tokenizer(texts: Iterable[str], folder: Path, vocabulary: int) -> None:
    """Train the tokenizer on these texts and write it to a folder, without blanks that double its file."""
    tokenizer = train_tokenizer(texts, vocabulary)
    tokenizer.save_pretrained(str(folder))
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
