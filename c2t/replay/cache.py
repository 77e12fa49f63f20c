"""Texts on disk: a target's continuations of a batch of prompts, with features, for every run that needs the same ones.

They lie in $C2T_CACHE/texts (default ~/.cache/c2t/texts), one safetensors file a batch, named by a hash of everything
they depend on. When all of them exceed LIMIT bytes, the least recently used ones are deleted. By hand: diskcache and
joblib store pickles, which any program that can write there could turn into code, and joblib's limit must be asked for.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from c2t.errors import one_line
from c2t.models.loading.load import Pair
from c2t.replay.lockstep import Continuation, read_continuations, write_continuations
from c2t.sampling import Sampling
from c2t.storage.atomic import TEMPORARY, new_file
from c2t.storage.checksum import checksum
from c2t.storage.paths import cache

FORMAT = 2
LIMIT = 4 * 2**30


def folder() -> Path:
    """Return the folder of the texts."""
    return cache() / "texts"


def cached_continuations(
    pair: Pair,
    ids: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    beyond: int,
    sampling: Sampling,
    sequences: Sequence[int],
    completions: Sequence[Sequence[int]] | None = None,
) -> list[Continuation]:
    """Return the texts of `write_continuations` by the pair's target, ended by its EOS tokens, from disk if they are
    there; with completions those of `read_continuations`.

    Only texts of targets that were loaded from files are cached: the fingerprint of the files identifies the target.
    """
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "beyond": beyond, "sequences": list(sequences)}
    read = {} if completions is None else {"completions": [list(completion) for completion in completions]}
    path = folder() / f"{_key(pair, ids, settings | read, sampling)}.safetensors"
    cacheable = "target" in pair.sources
    if cacheable and path.is_file():
        texts = _read(path, ids, max_new_tokens, pair.target.device)
        if texts is not None:
            return texts
    if completions is None:
        texts = write_continuations(pair.target, ids, sampling=sampling, eos=pair.target.eos, **settings)
    else:
        texts = read_continuations(
            pair.target,
            ids,
            completions,
            max_new_tokens=max_new_tokens,
            beyond=beyond,
            sampling=sampling,
            eos=pair.target.eos,
        )
    if cacheable:
        _store(path, texts)
    return texts


def _key(pair: Pair, ids: Sequence[Sequence[int]], settings: dict[str, Any], sampling: Sampling) -> str:
    """Return a hash of weights, prompts and settings, and of versions and the kind of device, on which near ties
    depend."""
    target = pair.target
    depends = {
        "format": FORMAT,
        "target": pair.sources.get("target", ("", ""))[1],
        "dtype": pair.dtype,
        "features": target.taps,
        "eos": sorted(target.eos),
        "prompts": [list(prompt) for prompt in ids],
        "template": pair.template,
        "sampling": asdict(sampling),
        "draws": sampling.version,
        "device": target.device.type,
        "versions": [version(name) for name in ("torch", "transformers")],
        **settings,
    }
    return checksum(depends)[:32]


def _read(
    path: Path, ids: Sequence[Sequence[int]], max_new_tokens: int, device: torch.device
) -> list[Continuation] | None:
    """Return the texts in a file, None (and a warning) if it is damaged."""
    try:
        parts = load_file(path)
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("sha256") != _checksum(parts):
                raise ValueError("it does not have its checksum")
        parts = {name: part.to(device) for name, part in parts.items()}
        lengths, ends = parts["lengths"].tolist(), parts["ends"].tolist()
        tokens, features = parts["tokens"].split(lengths), parts["features"].split([length - 1 for length in lengths])
        judged = [None] * len(ids)
        if "judged" in parts:
            judged = parts["judged"].split([n - len(prompt) for n, prompt in zip(lengths, ids, strict=True)])
        limits = [len(prompt) + max_new_tokens for prompt in ids]
        columns = tokens, features, map(len, ids), ends, limits, judged
        texts = [Continuation(*text) for text in zip(*columns, strict=True)]
        if not all(
            text.tokens[: text.prompt].tolist() == list(prompt) for text, prompt in zip(texts, ids, strict=True)
        ):
            raise ValueError("other prompts")
    except (SafetensorError, KeyError, ValueError, RuntimeError, OSError) as error:
        warnings.warn(f"{path} is damaged ({one_line(error)}): the texts are written again", stacklevel=3)
        return None
    with contextlib.suppress(OSError):  # another user's file, or a cache that is only read
        _mark_used(path)
    return texts


def _store(path: Path, texts: list[Continuation]) -> None:
    """Put the file into its place in one step. If it cannot be written, only warn."""
    parts = {
        "tokens": torch.cat([text.tokens for text in texts]),
        "features": torch.cat([text.features for text in texts]),
        "lengths": torch.tensor([len(text.tokens) for text in texts]),
        "ends": torch.tensor([text.end for text in texts]),
    }
    if texts[0].judged is not None:
        parts["judged"] = torch.cat([text.judged for text in texts])
    try:
        with new_file(path) as new:
            save_file(parts, new, metadata={"sha256": _checksum(parts)})
        _mark_used(path)
        _trim(path.parent)
    except (SafetensorError, OSError) as error:
        warnings.warn(
            f"{path.parent} stores no texts ({one_line(error)}); set C2T_CACHE to another folder", stacklevel=3
        )


def _checksum(parts: dict[str, Tensor]) -> str:
    kinds = {name: [str(part.dtype), list(part.shape)] for name, part in sorted(parts.items())}
    parts = {name: part.contiguous().view(-1).view(torch.uint8).cpu() for name, part in parts.items()}
    return checksum(kinds, (parts[name].numpy().data for name in kinds))


def _mark_used(path: Path) -> None:
    """Set the file's time to now, to the nanosecond: by itself a file system counts in steps of milliseconds."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))


def _trim(folder: Path) -> None:
    """Delete the files not used for longest until the others fit into LIMIT."""
    paths = [*folder.glob("*.safetensors"), *folder.glob(f"*{TEMPORARY}")]  # a killed process's files become old too
    entries: list[tuple[int, int, Path]] = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # another process has put it into its place, or deleted it
            entries.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    total = 0
    for _, size, path in sorted(entries, reverse=True):
        total += size
        if total > LIMIT:
            path.unlink(missing_ok=True)
