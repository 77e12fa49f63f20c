"""The tokenizer in a GGUF file, as one of the `tokenizers` library.

There are two models of tokenizers: "gpt2", byte pairs of bytes, whose merges the file lists, and "llama",
SentencePiece's byte pairs, whose merges follow from the scores of its tokens. transformers has a converter of its own,
which moves from release to release, and does not know how some families split digits.
"""

import re
from math import isfinite
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from c2t.errors import InputError, refusing, short_repr
from c2t.models.gguf.reader import AGAIN, Gguf

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # types of tokens
SPACE = "\u2581"  # SentencePiece's
TEMPLATE = "tokenizer.chat_template"
LONGEST_TEMPLATE = 2**20  # characters

_LLAMA3 = "|".join(
    [
        *(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}"),
        *(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"),
    ]
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = "|".join([*_WORDS, r"\p{N}", _REST])
_GPT4O = "|".join([*(f"{word}(?i:'s|'t|'re|'ve|'m|'ll|'d)?" for word in _WORDS), r"\p{N}{1,3}", _REST])
# How a text is split before byte pairs are merged: by an expression, or "": GPT-2's, after every digit alone or not.
SPLITS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx", "pixtral"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **{"tekken": _TEKKEN, "gpt-4o": _GPT4O},
    **dict.fromkeys(("default", "gpt2", "gpt-2", "olmo", "phi-2", "jais"), ""),
}
DIGITS_ALONE = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
NFC = ("qwen2", "deepseek-r1-qwen")  # whose own tokenizers join letters and accents first
# A whole word that is a token is one.
IGNORE_MERGES = (
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "pixtral",
    "tekken",
)  # a whole word that is a token is one
BEGIN_ADDED = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral")  # unless a file says otherwise


def tokenizer_of(file: Gguf, rows: int) -> PreTrainedTokenizerBase:
    """Return the tokenizer, with its chat template, of a file. rows: of the embeddings. InputError for one that is
    damaged, or of a kind that c2t does not know."""
    entries = {key.removeprefix("tokenizer.ggml."): value for key, value in file.entries.items()}
    model, tokens = entries.get("model"), entries.get("tokens")
    if model not in ("gpt2", "llama"):
        raise InputError(f"{file.path}: a tokenizer of the kind {short_repr(model)}; c2t reads 'gpt2' and 'llama'")
    _check(file, entries, rows)
    kinds = entries.get("token_type") or [1] * len(tokens)
    with refusing(f"{file.path}: damaged: its tokenizer cannot be made"):
        made = _byte_level(file, entries, kinds) if model == "gpt2" else _sentencepiece(file, entries)
        vocabulary = made.get_vocab()
        for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
            texts = [text for text, of in zip(tokens, kinds, strict=True) if of == kind and text in vocabulary]
            added = [AddedToken(text, normalized=False, special=special) for text in texts]
            made.add_special_tokens(added) if special else made.add_tokens(added)
        _add_ends(made, entries, model == "llama" or entries.get("pre") in BEGIN_ADDED)
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        ids = {name: entries.get(f"{key}_token_id") for name, key in names.items()}
        special = {f"{name}_token": tokens[number] for name, number in ids.items() if number is not None}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, **special)
    tokenizer.chat_template = _template(file)
    return tokenizer


def tokenizer_kind(file: Gguf) -> str:
    """Return the kind of a file's tokenizer in a word or two, and the number of its tokens; nothing is checked."""
    model, tokens = (file.entries.get(f"tokenizer.ggml.{name}") for name in ("model", "tokens"))
    kind = {"gpt2": "byte pairs", "llama": "SentencePiece"}.get(str(model), "of an unknown kind")
    return f"{kind}, {len(tokens) if isinstance(tokens, list) else 0:,} tokens"


def _check(file: Gguf, entries: dict[str, Any], rows: int) -> None:
    """Raise InputError for a vocabulary whose lists do not fit together."""
    tokens = entries.get("tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{file.path}: damaged: its tokenizer has no tokens; {AGAIN}")
    if len(tokens) > rows:
        raise InputError(f"{file.path}: damaged: {len(tokens):,} tokens, and embeddings of {rows:,}; {AGAIN}")
    if len(set(tokens)) < len(tokens):
        raise InputError(f"{file.path}: damaged: tokens of its tokenizer are there twice; {AGAIN}")
    needed = {"gpt2": ("merges", str), "llama": ("scores", float)}[entries["model"]]
    for name, kind in (("token_type", int), needed):
        values = entries.get(name)
        if values is None and name == "token_type":
            continue
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise InputError(f"{file.path}: damaged: its tokenizer has no {name}; {AGAIN}")
        if name != "merges" and len(values) != len(tokens):
            raise InputError(f"{file.path}: damaged: {len(tokens):,} tokens, and {len(values):,} of {name}; {AGAIN}")
    if not all(map(isfinite, entries.get("scores") or ())):
        raise InputError(f"{file.path}: damaged: scores of its tokens are no numbers; {AGAIN}")
    for name, number in entries.items():
        if name.endswith("_token_id") and not (isinstance(number, int) and 0 <= number < len(tokens)):
            raise InputError(f"{file.path}: damaged: {name} = {short_repr(number)} of {len(tokens):,} tokens; {AGAIN}")


def _byte_level(file: Gguf, entries: dict[str, Any], kinds: list[int]) -> Tokenizer:
    name, spelling = entries.get("pre", "default"), bytes_to_unicode()
    if name not in SPLITS and name not in DIGITS_ALONE:
        names = ", ".join(sorted((*SPLITS, *DIGITS_ALONE)))
        raise InputError(f"{file.path}: its tokenizer splits texts as {short_repr(name)}; c2t knows {names}")
    alphabet = set(spelling.values())
    vocabulary = {}
    for number, (token, kind) in enumerate(zip(entries["tokens"], kinds, strict=True)):
        spelt = kind in (CONTROL, USER_DEFINED) or alphabet.issuperset(token)
        vocabulary[token if spelt else "".join(spelling[byte] for byte in token.encode())] = number
    merges = [tuple(merge.split(" ")) for merge in entries["merges"]]
    if wrong := next((pair for pair in merges if len(pair) != 2 or "".join(pair) not in vocabulary), None):
        raise InputError(f"{file.path}: damaged: {short_repr(' '.join(wrong))} merges to no token; {AGAIN}")
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=name in IGNORE_MERGES))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not SPLITS.get(name))
    first = pre_tokenizers.Split(Regex(SPLITS[name]), "isolated") if SPLITS.get(name) else None
    if name in DIGITS_ALONE:
        first = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, by_bytes]) if first else by_bytes
    if name in NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: Gguf, entries: dict[str, Any]) -> Tokenizer:
    tokens, scores = entries["tokens"], entries["scores"]
    if file.architecture == "gemma3":
        # Runs of spaces are spelt as such. The scores do not follow the order of merging, the tokens' order does.
        tokens = [SPACE * len(token) if re.fullmatch(" {2,}", token) else token for token in tokens]
        scores = range(0, -len(tokens), -1)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    unknown = entries.get("unknown_token_id", 0)
    model = BPE(vocabulary, merges_of(vocabulary, scores), unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    prefix = entries.get("add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    # a space before the text, and after every special token, as llama.cpp puts it
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefix else back)
    return tokenizer


def merges_of(vocabulary: dict[str, int], scores: Any) -> list[tuple[str, str]]:
    """Return the merges that SentencePiece's scores mean, the first ones first: every way to make a token of two, those
    of the highest score first, and of such with the longer first part."""
    merges = []
    for (token, number), score in zip(vocabulary.items(), scores, strict=True):
        pairs = ((token[:at], token[at:]) for at in range(len(token) - 1, 0, -1))
        merges += [(-score, number, pair) for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
    merges.sort(key=lambda merge: (merge[0], -len(merge[2][0]), -len(merge[2][1])))
    return [pair for _, _, pair in merges]


def _add_ends(tokenizer: Tokenizer, entries: dict[str, Any], begins: bool) -> None:
    """Let the tokenizer put the first and the last token of a text around it, where the file says so."""
    begin, end = (
        entries["tokens"][entries[f"{name}_token_id"]]
        if entries.get(f"add_{name}_token", default) and f"{name}_token_id" in entries
        else None
        for name, default in (("bos", begins), ("eos", False))
    )
    if begin is None and end is None:
        return
    around = ([begin] if begin else []), ([end] if end else [])
    single, pair = [*around[0], "$A", *around[1]], [*around[0], "$A", *around[0], "$B:1", *around[1]]
    ids = [(token, tokenizer.token_to_id(token)) for token in (begin, end) if token is not None]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _template(file: Gguf) -> str | None:
    template = file.entries.get(TEMPLATE)
    if template is not None and (not isinstance(template, str) or len(template) > LONGEST_TEMPLATE):
        raise InputError(f"{file.path}: damaged: its chat template is no text of a usual length; {AGAIN}")
    return template or None
