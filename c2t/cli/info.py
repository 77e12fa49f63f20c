"""Facts about a pair, a classifier or a harvest, read from its small files without loading a model."""

import math
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from c2t.classifier import TreeClassifier
from c2t.errors import InputError, one_line
from c2t.kernels.compiled import MARCH, OFF
from c2t.kernels.decoder_layers import Kind, bf16_is_faster, fastest_in_bf16, int8_is_fastest, works
from c2t.kernels.native import kernels
from c2t.models.drafts.heads import summary_of
from c2t.models.drafts.language_model import is_language_model
from c2t.models.drafts.published_medusa import PICKLED, is_published
from c2t.models.gguf.facts import facts_of
from c2t.models.gguf.reader import is_gguf
from c2t.models.loading.block_fields import is_block
from c2t.models.loading.eagle_checkpoint import shared_layer
from c2t.models.loading.fingerprint import ending_files, fingerprint
from c2t.models.loading.hub import download_size, fetch
from c2t.models.loading.names import drafts_of, parts
from c2t.models.target import gguf_target
from c2t.models.target.families import FAMILIES
from c2t.records.schema import MANIFEST, Harvest
from c2t.storage import paths as checkpoints
from c2t.storage.checked import from_json, read_file
from c2t.storage.published import PUBLISHED

# How a processor multiplies with bf16 weights, which its make and its instructions decide.
PRODUCTS = {
    Kind.BF16_STORED: "in float32",
    Kind.BF16: "in bfloat16, two at a time (AVX512-BF16)",
    Kind.BF16_AMX: "in bfloat16, in tiles (AMX)",
}


class Facts(NamedTuple):
    title: str
    values: dict[str, Any]


def info(reference: str) -> list[Facts]:
    """Return the facts about a pair's parts, its classifier and its harvest, or about a folder, a Hub id or a GGUF
    file.

    Raises InputError, which lists the names, for a reference that is nothing.
    """
    if is_gguf(reference):
        return [Facts("language model, GGUF", {"file": reference} | facts_of(checkpoints.usable(reference)))]
    if not checkpoints.is_name(reference):
        source = checkpoints.resolve(reference, "folder")
        return folder(fetch(source, ("config.json",)) if isinstance(source, str) else source)
    facts = _pair(reference)
    facts += [table for part in _parts() for table in _part(reference, part)]
    rows = checkpoints.root() / "data" / "harvest" / reference
    if rows.is_dir():
        facts += folder(rows)
    if not facts and Path(reference).is_dir():
        facts = folder(Path(reference))
    if not facts:
        names = sorted({*checkpoints.names_with("target"), *checkpoints.names_with(checkpoints.CLASSIFIER)})
        raise InputError(f"nothing is called {reference!r}; known: {', '.join(names) or 'none yet'}")
    return facts


def folder(path: Path) -> list[Facts]:
    """Return what one folder holds: a harvest, a classifier, a language model, an EAGLE head, or a pair of these."""
    if (path / MANIFEST).exists() or any(path.glob("*.parquet")):
        return [_harvest(path)]
    if (path / "config.json").is_file():
        return [_model(path)]
    parts = [facts for part in _parts() if (path / part).is_dir() for facts in folder(path / part)]
    if not parts:
        raise InputError(f"{path} holds no pair, no classifier and no harvest")
    return parts


def _parts() -> list[str]:
    return ["target", *parts().values(), checkpoints.CLASSIFIER]


def _pair(name: str) -> list[Facts]:
    """Return the facts about a pair as a whole: none for a name that has no drafts on this machine."""
    drafts = drafts_of(name)
    if not drafts:
        return []
    sizes = [f"{draft} ({parameters(folder):,} parameters)" for draft, folder in drafts.items()]
    card = next(iter(drafts.values())).parent / "README.md"
    text = read_file(card).decode(errors="replace") if card.is_file() else ""
    licence = re.search(r"^license: (.*)", text, re.MULTILINE)
    values = {"name": name, "drafts": sizes} | ({"licence": licence[1]} if licence else {})
    default = "bfloat16 for a target of a fast family stored in it, with a draft that is fast, too, else float32"
    default = default if bf16_is_faster() else "float32"
    default += ", heads with an EAGLE layer rounded to 8 bits" * int8_is_fastest()
    more = ", such as int8 and int4 for a fast family" * (Kind.INT8 in works())
    loads = f"on this CPU {default}; elsewhere the target's dtype; --dtype chooses another{more}"
    return [Facts("pair", values | {"loads in": loads, "on a CPU": arithmetic()})]


def arithmetic() -> str:
    """Return how targets of fast families and EAGLE heads are computed on this machine's CPU."""
    if kernels() is not None:
        return f"c2t's kernels in C: sums in float32, products with bfloat16 weights {PRODUCTS[fastest_in_bf16()]}"
    why = f"${MARCH} is {OFF}" if os.environ.get(MARCH) == OFF else "no C compiler here that makes c2t's kernels"
    return f"torch, several times slower: {why}"


def _computed(model_type: str) -> str:
    """Return how a target of this type is computed on this machine's CPU."""
    if model_type not in FAMILIES:
        return f"torch, slower: c2t's kernels are for {', '.join(FAMILIES)}"
    return arithmetic() + "; for shapes that they cannot run, torch" * (kernels() is not None)


def parameters(folder: Path) -> int:
    """Return the number of weights of a draft: those in its folder's safetensors and in the layer that it shares.

    Integers, which are token ids, do not count, nor do weights that only an ending of the draft's name brings in.
    InputError for a damaged file.
    """
    total, layer = 0, shared_layer(folder)
    for path in [*folder.glob("*.safetensors"), *(layer.glob("*.safetensors") if layer else [])]:
        if path.name in ending_files():
            continue
        try:
            with safe_open(path, "pt") as file:
                tensors = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
                total += sum(math.prod(tensor.get_shape()) for tensor in tensors if "F" in tensor.get_dtype())
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is damaged ({one_line(error)}): copy it again") from error
    return total


def _part(name: str, part: str) -> list[Facts]:
    try:
        source = checkpoints.resolve(name, part)
    except InputError as error:
        if part == "target" and name == gguf_target.PAIR:
            return [Facts("language model", {"missing": gguf_target.not_there()})]
        missing = part == checkpoints.CLASSIFIER and name in checkpoints.names_with("target")
        return [Facts("classifier", {"missing": str(error)})] if missing else []
    if isinstance(source, Path):
        return folder(source)
    published = PUBLISHED[name]
    more = {"template": published.template} if part == "target" else {}
    return [Facts(f"{part}, published", {"Hub id": source, "download": download(name, part)} | more)]


def download(name: str, part: str) -> str:
    """Return how much loading a published pair's target or draft would download; nothing is."""
    source, about = getattr(PUBLISHED[name], part), PUBLISHED[name].sizes[part == "draft"]
    size = download_size(source, model=part == "target")
    if size is None:
        estimate = "size not known" if about is None else f"about {about:g} GB, by its number of weights"
        return f"{estimate} (the Hub is not within reach)"
    return f"{size / 1e9:.2f} GB" if size else "nothing, it is on this machine"


def _harvest(path: Path) -> Facts:
    from c2t.records.reader import describe  # noqa: PLC0415 - needs an extra

    harvest = describe(path)
    size = sum((path / name).stat().st_size for name in harvest.shards)
    counts = {
        "folder": path,
        "rows": harvest.rows,
        "trees": harvest.trees,
        "accepted": f"{harvest.positives:,} ({harvest.positives / max(1, harvest.rows):.2%})",
        "texts": len(harvest.prompts),
        "texts without rows": without_rows(harvest),
        "too long": harvest.too_long,
    }
    if harvest.rows:
        counts["bytes a row"] = f"{size / harvest.rows:.2f}"
    return Facts("harvest", counts | _flat(harvest.provenance))


def without_rows(harvest: Harvest) -> int:
    """Texts that were left out because they do not fit the target's positions, or that ended with their first token."""
    from c2t.records.reader import read_columns  # noqa: PLC0415 - needs an extra

    prompts = read_columns(harvest.folder, ("prompt",))["prompt"] if harvest.rows else ()
    return len(harvest.prompts) - len(np.unique(prompts))


def _model(path: Path) -> Facts:
    raw = from_json(dict[str, Any], read_file(path / "config.json"), path / "config.json")
    if checkpoints.is_classifier(path):
        classifier = TreeClassifier.from_pretrained(path)
        values = asdict(classifier.config) | {"validation_prompts": len(classifier.config.validation_prompts)}
        return Facts("classifier", {"folder": path, **_flat(values)})
    heads = "Medusa-style head" if "medusa_num_heads" in raw else "block head" if is_block(raw) else "EAGLE head"
    heads = "Medusa's heads, as published" if is_published(path) else heads
    title = "language model" if is_language_model(path) else heads
    names = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    names += ("layer_of", "medusa_num_layers", "base_model_name_or_path")
    files = [*path.glob("*.safetensors"), *path.glob("*.bin"), *path.glob(PICKLED)]
    weights = sum(file.stat().st_size for file in files)
    size: dict[str, Any] = {"weights": f"{weights / 2**20:.1f} MiB"} if weights else {}
    size |= {"parameters": count} if (count := parameters(path)) else {}
    about = {"head": _head(path)} if title == heads else {"on a CPU": _computed(str(raw.get("model_type")))}
    about |= {name: raw[name] for name in (*names, "max_position_embeddings", "dtype") if name in raw}
    return Facts(title, {"folder": path, "fingerprint": fingerprint(path), **about, **size})


def _head(path: Path) -> str:
    """Return what a head is and reads, or why c2t does not read it."""
    try:
        return summary_of(path)
    except InputError as error:
        return f"cannot be read: {error}"


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Nested settings in one level: `metrics.recall`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict)
        flat |= {f"{name}.{key}": item for key, item in _flat(value).items()} if nested else {name: value}
    return flat
