"""Prompt sets in Spec-Bench's JSONL: beginnings of documents, from different source files for harvest and for bench."""

import json
import random
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from pipelines.pair.corpus import QUOTA, Document

PROMPT_TOKENS = (40, 100)
CONTINUATION_TOKENS = 150  # at least so much true text follows
COUNTS = {"bench": {"known": 60, "heldout": 40}, "harvest": {"known": 100, "heldout": 40}}
FOLDERS = {"bench": ".", "harvest": "harvest"}


def beginning(document: Document, tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> str | None:
    """Return the document up to a line's end (prose: a word's end) near a random length; None if nothing fits.

    The text ends before the white space, because the tokenizer joins that to the next word.
    """
    least, most = PROMPT_TOKENS
    pieces = tokenizer(document.text, return_offsets_mapping=True, add_special_tokens=False)
    ends = [end for _, end in pieces["offset_mapping"]]
    gap = " \n" if document.domain == "prose" else "\n"
    room = min(most, len(ends) - CONTINUATION_TOKENS)
    fitting = [end for end in ends[least - 1 : max(room, 0)] if document.text[end] in gap]
    return document.text[: rng.choice(fitting)] if fitting else None


def prompt_set(documents: list[Document], tokenizer: PreTrainedTokenizerBase, domain: str, use: str) -> list[dict]:
    """Return prompts of seen and of unseen documents in mixed order, so that the first few hold both."""
    rng = random.Random(f"{use} {domain}")
    chosen = []
    for category, count in COUNTS[use].items():
        pool = [d for d in documents if d.domain == domain and d.split == f"{use}_{category}"]
        rng.shuffle(pool)
        texts = [text for d in pool if (text := beginning(d, tokenizer, rng))]
        chosen += [(category, text) for text in texts[:count]]
    rng.shuffle(chosen)
    return [{"question_id": i, "category": category, "turns": [text]} for i, (category, text) in enumerate(chosen)]


def write_prompts(documents: list[Document], tokenizer: PreTrainedTokenizerBase, folder: Path) -> dict[str, int]:
    """Write the prompt files; return the number of prompts in each."""
    written = {}
    for use, subfolder in FOLDERS.items():
        for domain in QUOTA:
            prompts = prompt_set(documents, tokenizer, domain, use)
            path = folder / subfolder / f"{domain}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
            written[f"{use}/{domain}"] = len(prompts)
    return written
