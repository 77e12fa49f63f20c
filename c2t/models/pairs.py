"""Pairs of target and draft, by name or by their parts."""

import hashlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from c2t.errors import InputError, check_kind, check_truth, one_line, refusing
from c2t.kernels.device import checked_device
from c2t.kernels.llama_layer import bytes_pay, rounds
from c2t.models import bigrams, gguf_target, learned_fit
from c2t.models.bigrams import Bigrams
from c2t.models.block import BlockDraft, BlockHead
from c2t.models.checkpoint_files import check_files
from c2t.models.conditioned import ConditionedDraft
from c2t.models.draft_lm import DraftLM, check_tokens, check_vocabulary
from c2t.models.eagle_checkpoint import fetch, has_eagle_layer, load_head, shared_layer
from c2t.models.eagle_draft import EagleDraft
from c2t.models.learned_fit import LearnedFit
from c2t.models.medusa import MedusaDraft, MedusaHead
from c2t.models.ngrams import NgramDraft, check_prior_weight, lookup
from c2t.models.offloaded import check_in_memory
from c2t.models.packed_llama import PackedLlama
from c2t.models.published_medusa import PICKLED, PublishedMedusaDraft, is_published, load_heads
from c2t.models.target import Target
from c2t.models.tensor_parallel import distributed_config, gather_shared
from c2t.models.usual_dtype import has_bf16, usual_dtype
from c2t.storage import paths as checkpoints
from c2t.storage.checked import OPEN, from_json, read_file
from c2t.storage.published import PUBLISHED

# The drafts that a pair can bring along: name on the command line -> part of the pair's folder, kind of draft.
DRAFTS = {
    "eagle": ("draft", "head"),
    "distilled": ("draft_distilled", "head"),
    "eagle3": ("draft_eagle3", "head"),
    "medusa": ("draft_medusa", "head"),
    "block": ("draft_block", "head"),
    "mtp": ("draft_mtp", "head"),
    "lm": ("draft_lm", "lm"),
}
PLACES = str | Path | None  # what parts of a pair are named by; None: the usual one
LOOKUP = "lookup"  # the draft without a model, which needs no files
NGRAMS = "+ngrams"  # end of any draft's name, or "+ngrams=WEIGHT"
# Behind a draft's name, before NGRAMS: what conditions it on the path.
BIGRAMS, FIT = FITS = ("+bigrams", "+fit")
FILES = {BIGRAMS: bigrams.FILE, FIT: learned_fit.FILE}  # beside the draft's weights
TAPS = "+taps="  # behind an EAGLE-3 head's name, before FITS: the layers whose inputs it reads, as 2,18,33
_MIB = 2**20
Dtype = torch.dtype | str
USUAL = "usual"  # dtype of a target that `usual_dtype` chooses; "auto" is transformers' word for the checkpoint's

HeadDraft = EagleDraft | MedusaDraft | PublishedMedusaDraft | BlockDraft
AnyDraft = HeadDraft | DraftLM | ConditionedDraft | NgramDraft


@dataclass(frozen=True)
class Pair:
    """Target, its draft, the tokenizer of both, and their names.

    template: the chat template that the target was trained with: a published one's name, "chat" for the tokenizer's
    own, "" for plain text. sources: part -> (path or Hub id, fingerprint or commit). rounded: the draft's head is
    computed in 8 bits.
    """

    name: str
    target: Target
    draft: AnyDraft
    tokenizer: PreTrainedTokenizerBase
    template: str
    sources: dict[str, tuple[str, str]]
    rounded: bool = False

    @property
    def arithmetic(self) -> str:
        """Name of the data type that the pair is computed in: what costs and results hang on besides `sources`."""
        return self.dtype + ", head in 8 bits" * (self.rounded and not self.target.rounded)

    @property
    def dtype(self) -> str:
        """Name of the target's data type, as the command line has it."""
        return "int8" if self.target.rounded else str(self.target.embed_tokens.weight.dtype).removeprefix("torch.")

    @property
    def marks(self) -> dict[str, str]:
        """Part -> fingerprint or commit: what results of the pair hang on."""
        return {part: mark for part, (_, mark) in self.sources.items()}


@dataclass(frozen=True)
class Provenance:
    """Part of a pair's provenance.json that loading reads.

    target_weights: `weights_fingerprint` of the target that its heads learned from.
    """

    __pydantic_config__ = OPEN
    target_weights: str | None = None


def load_pair(
    pair: str | None = None,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    device_map: str | dict | None = None,
    trust_remote_code: bool = False,
    tensor_parallel: bool = False,
) -> Pair:
    """Load a pair by NAME (default: smollm2), or a target and a draft by folder or Hub id.

    draft: may also name one of the pair's own drafts (DRAFTS); "+ngrams" at its end mixes it with the text's n-grams
    (`c2t.models.ngrams`), "+ngrams=WEIGHT" does so without what was learned; "+fit" or "+bigrams" before that
    conditions a draft on the path, by a file that comes with it (`c2t.models.conditioned`);
    "+taps=2,18,33" before that names the layers of the target whose inputs an EAGLE-3 head reads, where its config does
    not say it clearly.
    "lookup" drafts from the text alone, without a model (`c2t.models.ngrams.lookup`). dtype: by default the
    checkpoint's; on a CPU, without device_map, what `usual_dtype` says if the draft is "lookup" or has an EAGLE layer,
    which is rounded to 8 bits then where that is faster, else float32. torch.int8: a Llama's layers and LM head,
    and an EAGLE layer, are computed in 8 bits. device_map: spreads a large target over devices as in transformers.
    trust_remote_code: run the Python code that comes with the files of target and draft, which are refused without it
    if they ask for that. tensor_parallel: split the target over the processes of torchrun
    (`c2t.models.tensor_parallel`); each has a whole draft. The target of smollm2 is converted from its package the
    first time. Warns of a head that was trained for other weights of the target.
    Raises InputError for unknown names, unreadable checkpoints, and parts that do not fit each other.
    """
    for name, place in (("pair", pair), ("target", target), ("draft", draft)):
        check_kind(name, place, PLACES, "a name, a folder or a Hub id")
    check_kind("dtype", dtype, torch.dtype | None, "one of torch, such as torch.bfloat16")
    check_kind("device_map", device_map, str | dict | None, "a word or a mapping, as in transformers")
    check_truth("trust_remote_code", trust_remote_code)
    check_truth("tensor_parallel", tensor_parallel)
    if pair is None and target is None:
        pair = checkpoints.DEFAULT_PAIR
    draft, ngrams = _split(draft)
    draft, fit = _split_fit(draft)
    draft, taps = _split_taps(draft)
    if draft is not None and not str(draft):
        known = ", ".join((*DRAFTS, LOOKUP))
        raise InputError(f"the name of the draft is empty: give one of {known}, a folder or a Hub id")
    if pair is None and (draft is None or str(draft) in DRAFTS):
        raise InputError(f"a target without a pair's name needs a draft: its folder or Hub id, or {LOOKUP}")
    device = _device("cpu" if device is None else device)
    target_place = str(_target_place(pair if target is None else target))
    looks_up = _looks_up(draft, fit, taps)
    draft_place, kind = (LOOKUP, LOOKUP) if looks_up else _draft_place(pair, draft)
    folder = Path() if looks_up else fetch(draft_place)
    kind = kind or kind_of(folder)
    types: tuple[Dtype, Dtype] = (dtype, dtype) if dtype else ("auto", "auto")  # of target and draft LM
    eagle, rounded = kind == "head" and not is_published(folder) and has_eagle_layer(folder), False
    if dtype == torch.int8:
        if device.type != "cpu" or device_map is not None or tensor_parallel:
            raise InputError("int8 is computed on one CPU: choose it, without --device-map and --tp, or another dtype")
        types, rounded = (torch.int8, torch.float32), eagle
    elif dtype is None and device.type == "cpu" and device_map is None:
        usual = (eagle or looks_up) and not tensor_parallel
        types, rounded = (USUAL if usual else torch.float32, torch.float32), usual and eagle and bytes_pay()
    target_model = _load_target(target_place, device, types[0], device_map, trust_remote_code, tensor_parallel)
    tokenizer = _load_tokenizer(target_place, target_model, trust_remote_code)
    rounded = rounded and rounds(target_model.embed_tokens.weight.shape[1])
    if kind == "head":
        loaded = _head_draft(folder, target_model, taps, rounded)
        _check_trained_for(folder, Path(target_place))
    elif looks_up:
        loaded = _lookup(target_model, ngrams)
    elif taps is not None:
        raise _no_taps(folder)
    else:
        model = _load_target(str(folder), device, types[1], device_map, trust_remote_code)
        _check_same_tokens(folder, model, tokenizer, target_model, trust_remote_code)
        loaded = DraftLM(model, target_model.config.vocab_size)
    published = PUBLISHED.get(pair or "")
    sources = {
        # A Hub checkpoint is known by its commit: its files may be there twice, and in part only.
        "target": (target_place, getattr(target_model.config, "_commit_hash", None) or fingerprint(Path(target_place))),
        "draft": _mixed((LOOKUP, LOOKUP), loaded) if looks_up else (str(draft_place), fingerprint(folder)),
    }
    if taps is not None:
        sources["draft"] = tuple(f"{source}{TAPS}{','.join(map(str, taps))}" for source in sources["draft"])
    if fit is not None:
        loaded = _conditioned(loaded, fit, folder, target_model)
        source, mark = sources["draft"]
        sources["draft"] = (f"{source}{fit}", f"{mark}{fit}={_hash([folder / FILES[fit]])}")
    name = pair or checkpoints.name_of(target_place)
    template = published.template if published else "chat" * bool(tokenizer.chat_template)
    found = Pair(name, target_model, loaded, tokenizer, template, sources, rounded)
    return found if ngrams is None or looks_up else with_ngrams(found, ngrams.prior_weight)


def with_ngrams(pair: Pair, prior_weight: float | None = None) -> Pair:
    """Return the pair with its draft mixed with the text's n-grams, by default as is usual for drafts of its kind;
    InputError if it is already."""
    if isinstance(pair.draft, NgramDraft):
        raise InputError(f"the draft of {pair.name} has {NGRAMS} already")
    draft = NgramDraft(pair.draft, prior_weight)
    return replace(pair, draft=draft, sources={**pair.sources, "draft": _mixed(pair.sources["draft"], draft)})


def _mixed(source: tuple[str, str], draft: NgramDraft) -> tuple[str, str]:
    """Return the source of a draft that is mixed with n-grams: the name that loads it, and what tells it apart."""
    place, mark = source
    asked = "" if draft.prior_weight is None else f"={draft.prior_weight:g}"
    return f"{place}{NGRAMS}{asked}", f"{mark}{NGRAMS}:{draft.mark}"


def load_draft(draft: str | Path, target: Target, trust_remote_code: bool = False) -> AnyDraft:
    """Load a draft for a loaded target, onto its device and in its dtype, and tap the layers that it reads.

    draft: a folder, a Hub id, or the name of a pair for its usual one, with endings as in `load_pair`.
    InputError for one that cannot be loaded or belongs to another target.
    """
    place, taps, fit, ngrams = _parts(draft)
    if place == LOOKUP:
        return _lookup(target, ngrams)
    folder = fetch(place)
    if kind_of(folder) == "head":
        loaded = _head_draft(folder, target, taps)
    elif taps is not None:
        raise _no_taps(folder)
    else:
        model = _load_target(str(folder), target.device, target.model.dtype, None, trust_remote_code)
        check_vocabulary(model, target, folder)
        loaded = DraftLM(model, target.config.vocab_size)
    if fit is not None:
        loaded = _conditioned(loaded, fit, folder, target)
    return loaded if ngrams is None else NgramDraft(loaded, ngrams.prior_weight)


def check_draft(draft: str | Path) -> None:
    """Raise InputError unless `load_draft` would know where to look; nothing is downloaded."""
    check_kind("draft", draft, PLACES, "a name, a folder or a Hub id")
    _parts(draft)


class _Ngrams(NamedTuple):
    """N-grams that a draft's name asks for. prior_weight: None for the usual mixture."""

    prior_weight: float | None


def _parts(draft: str | Path) -> tuple[Path | str, tuple[int, ...] | None, str | None, _Ngrams | None]:
    """Return a draft's folder or Hub id, its taps (None: its config's), which of FITS conditions it (None: none), and
    its n-grams (None: none)."""
    reference, ngrams = _split(draft)
    reference, fit = _split_fit(reference)
    reference, taps = _split_taps(reference)
    if _looks_up(reference, fit, taps):
        return LOOKUP, None, None, ngrams
    return checkpoints.resolve("" if reference is None else reference, "draft"), taps, fit, ngrams


def _looks_up(draft: str | Path | None, fit: str | None, taps: tuple[int, ...] | None) -> bool:
    """Return True if a draft is the one without a model; InputError for endings that it cannot have."""
    if str(draft) != LOOKUP:
        return False
    if fit is not None or taps is not None:
        raise InputError(f"{LOOKUP} has no states that {fit or TAPS} could be of; leave that out")
    return True


def _lookup(target: Target, ngrams: _Ngrams | None) -> NgramDraft:
    """Return the draft without a model for this target."""
    weight = None if ngrams is None else ngrams.prior_weight
    return lookup(target.config.vocab_size, target.embed_tokens.weight.dtype, weight)


def _no_taps(folder: Path) -> InputError:
    return InputError(f"{folder}: a language model drafts without taps; leave {TAPS} out")


def _head_draft(folder: Path, target: Target, taps: tuple[int, ...] | None = None, rounded: bool = False) -> HeadDraft:
    """Load a head for this target, and tap the layers that it reads; `taps` as in `load_head`, `rounded` as in
    `EagleDraft`. InputError for another target's head."""
    check_in_memory(target.embed_tokens, "embedding")
    if is_published(folder):
        if taps is not None:
            raise InputError(f"{folder}: Medusa's heads read the last layer; leave {TAPS} out")
        target.tap(())
        return PublishedMedusaDraft(load_heads(folder, target.embed_tokens), target.lm_head)
    learns = target.embed_tokens.weight.requires_grad
    head = load_head(folder, target.embed_tokens, target.lm_head, taps).requires_grad_(False)
    target.embed_tokens.requires_grad_(learns)  # the head shares it, but it is the target's
    target.tap(head.taps(target.num_layers))
    if isinstance(head, BlockHead):
        return BlockDraft(head, target.lm_head)
    return (MedusaDraft if isinstance(head, MedusaHead) else EagleDraft)(head, target.lm_head, rounded)


def _conditioned(draft: HeadDraft | DraftLM, fit: str, folder: Path, target: Target) -> ConditionedDraft:
    """Return the draft with what conditions it, from its folder; InputError if that is not there."""
    check_in_memory(target.embed_tokens, "embedding")
    device, vocabulary = target.embed_tokens.weight.device, target.config.vocab_size
    if fit == BIGRAMS:
        return ConditionedDraft(draft, Bigrams.load(folder, vocabulary, device))
    if draft.hidden_size != target.embed_tokens.weight.shape[1]:
        raise InputError(f"{folder}: {FIT} reads states as wide as the target's; leave it out")
    known = draft.vocabulary and draft.vocabulary.tokens if isinstance(draft, DraftLM) else draft.head.tokens
    tokens = torch.arange(vocabulary, device=device) if known is None else known
    return ConditionedDraft(draft, LearnedFit.load(folder, target.embed_tokens, tokens))


def _target_place(reference: str | Path) -> Path | str:
    """Return the target's folder or Hub id; the one that comes in a package is converted unless it is there."""
    if reference == gguf_target.PAIR and checkpoints.find(reference, "target") is None:
        return gguf_target.install(gguf_target.home())
    return checkpoints.resolve(reference, "target")


def _draft_place(pair: str | None, draft: str | Path | None) -> tuple[Path | str, str]:
    """Return the draft's folder or Hub id, and its kind if it is one of the pair's own ("" otherwise)."""
    name = str(draft or "eagle")
    part, kind = DRAFTS.get(name, ("draft", ""))
    there = drafts_of(pair) if kind and checkpoints.is_name(pair) else {}
    if there and name not in there:
        raise InputError(f"{pair} has no draft called {name}; it has: {', '.join(there)}{checkpoints.searched()}")
    return checkpoints.resolve(pair if kind else draft, part, others=DRAFTS), kind


def drafts_of(pair: str) -> dict[str, Path]:
    """Return the folders of the drafts that a pair has on this machine, by their names on the command line."""
    found = {name: checkpoints.find(pair, part) for name, (part, _) in DRAFTS.items()}
    return {name: folder for name, folder in found.items() if folder}


def _provenance(folder: Path) -> Provenance:
    file = folder / checkpoints.PROVENANCE
    return from_json(Provenance, read_file(file), file) if file.is_file() else Provenance()


def _check_trained_for(head: Path, target: Path) -> None:
    """Warn if the head's pair says that it was trained for other weights of the target."""
    if _provenance(head.parent).target_weights not in (None, weights_fingerprint(target)):
        warnings.warn(
            f"{head} was trained for other weights than those of {target} (another quantisation, for instance): the "
            "text stays exact, but fewer of its tokens may be accepted",
            stacklevel=3,
        )


def _split(draft: str | Path | None) -> tuple[str | Path | None, _Ngrams | None]:
    """Split "+ngrams=WEIGHT" from a draft's end; return the draft (None: the pair's usual one) and its n-grams (None:
    none)."""
    found = re.fullmatch(rf"(.*){re.escape(NGRAMS)}(?:=([^/]*))?", str(draft or ""), re.DOTALL)
    if not found:
        return draft, None
    name, prior_weight = found[1] and type(draft)(found[1]), found[2]
    try:
        prior_weight = None if prior_weight is None else float(prior_weight)
    except ValueError as error:
        raise InputError(f"draft = {draft}: write {NGRAMS}, or {NGRAMS}=WEIGHT with a number") from error
    if prior_weight is not None:
        check_prior_weight(prior_weight)
    return name or None, _Ngrams(prior_weight)


def _split_fit(draft: str | Path | None) -> tuple[str | Path | None, str | None]:
    """Split one of FITS from a draft's end; return the draft (None: the pair's usual one) and the fit (None: none)."""
    name = str(draft or "")
    fit = next((fit for fit in FITS if name.endswith(fit)), None)
    if fit is None:
        return draft, None
    name = name.removesuffix(fit)
    return (type(draft)(name) if name else None), fit


def _split_taps(draft: str | Path | None) -> tuple[str | Path | None, tuple[int, ...] | None]:
    """Split "+taps=2,18,33" from a draft's end; return the draft (None: the pair's usual one) and the layers (None: as
    its config has them)."""
    found = re.fullmatch(rf"(.*){re.escape(TAPS)}([^/]*)", str(draft or ""), re.DOTALL)
    if not found:
        return draft, None
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", found[2], re.ASCII):
        raise InputError(f"draft = {draft}: write {TAPS} with the numbers of layers between commas, as {TAPS}2,18,33")
    return (type(draft)(found[1]) if found[1] else None), tuple(map(int, found[2].split(",")))


def kind_of(folder: Path) -> str:
    """Return "lm" for the folder of a language model, which has its own tokenizer, and "head" for a draft head's; the
    trainer of Medusa's heads puts the target's tokenizer beside them."""
    return "lm" if (folder / "tokenizer_config.json").exists() and not is_published(folder) else "head"


def fingerprint(folder: Path) -> str:
    """Return a short hash of a checkpoint: names, sizes and bytes of its files, and of those of a head that it shares
    its layer with, without what only an ending of a draft's name brings in. In a file above 64 MiB it reads 64 KiB of
    every MiB, so that no large tensor changes unseen."""
    folder = folder.resolve()  # the layer's folder is: together they sort alike, however this one is written
    layer = shared_layer(folder)
    return _hash([*folder.glob("config.json"), *_weights(folder), *([] if layer is None else _weights(layer))])


def weights_fingerprint(folder: Path) -> str:
    """Return `fingerprint` of a checkpoint's weights alone: its config.json names the version of transformers too."""
    return _hash(_weights(folder))


def _weights(folder: Path) -> list[Path]:
    found = [*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob(f"{Path(PICKLED).stem}*.pt")]
    return [path for path in found if path.name not in FILES.values()]


def _hash(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for place in range(0, size, _MIB):
                file.seek(place)
                digest.update(file.read(_MIB if size <= 64 * _MIB else _MIB // 16))
    return digest.hexdigest()[:16]


def _device(name: str | torch.device) -> torch.device:
    device = checked_device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # kernels and graphs run on the current one
    return device


def _load_target(
    place: str,
    device: torch.device,
    dtype: Dtype,
    device_map: str | dict | None,
    trust_remote_code: bool,
    tensor_parallel: bool = False,
) -> Target:
    check_files(place, trust_remote_code)
    where: dict[str, Any] = {"device_map": device_map} if device_map else {}
    if dtype == torch.float64:
        where["experts_implementation"] = "eager"  # of mixtures of experts; torch's grouped products take no float64
    try:
        kind = usual_dtype(place, trust_remote_code) if dtype == USUAL else dtype
        kind = torch.float32 if kind == torch.int8 else kind  # which it is rounded from
        if tensor_parallel:
            where["distributed_config"] = distributed_config(place, trust_remote_code)
        with _no_report():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place,
                dtype=kind,
                output_loading_info=True,
                trust_remote_code=trust_remote_code,
                **where,
            )
    except InputError:
        raise
    except Exception as error:  # of many libraries, each with its own exceptions for wrong files
        raise InputError(f"{place}: the language model cannot be loaded ({one_line(error)})") from error
    model, loading = loaded
    model.requires_grad_(False)
    if loading["missing_keys"]:  # transformers would fill them with random numbers
        names = ", ".join(sorted(loading["missing_keys"])[:3])
        raise InputError(f"{place}: {len(loading['missing_keys'])} weights are missing ({names}); copy the files again")
    if tensor_parallel:
        gather_shared(model)
    if (dtype, kind) == (USUAL, torch.bfloat16) and not PackedLlama.serves(model):
        model = model.float()  # torch is slower in bf16, and rounds a tree and plain decoding apart
    if model.dtype == torch.bfloat16 and device.type == "cpu" and not has_bf16():
        how = "torch imitates it slowly: float32 is faster here"
        if PackedLlama.serves(model):
            how = "c2t's kernels compute in float32, on weights that stay in bf16"
        warnings.warn(f"{place}: this processor has no bf16 arithmetic; {how}", stacklevel=3)
    return Target(model if device_map or tensor_parallel else model.to(device), rounded=dtype == torch.int8)


@contextmanager
def _no_report() -> Iterator[None]:
    """Silence transformers' table of missing weights: they are refused in one line instead."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


def _check_same_tokens(
    folder: Path, draft: Target, tokenizer: PreTrainedTokenizerBase, target: Target, trust_remote_code: bool
) -> None:
    """Raise InputError unless a draft LM has the target's tokens: by its own tokenizer, or if that cannot be read, by
    their number."""
    try:
        own = _read_tokenizer(str(folder), trust_remote_code)
    except InputError:
        check_vocabulary(draft, target, folder)
    else:
        check_tokens(own, tokenizer, folder)


def _read_tokenizer(place: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    with refusing(f"{place}: no tokenizer can be loaded"):
        return AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)


def _load_tokenizer(place: str, target: Target, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    tokenizer = _read_tokenizer(place, trust_remote_code)
    with refusing(
        f"{place}: the tokenizer does not work"
    ):  # its steps come out of its file, and run for the first time
        tokenizer.decode(tokenizer("a b").input_ids)
    if len(tokenizer) > target.config.vocab_size:
        raise InputError(
            f"{place}: the tokenizer has {len(tokenizer)} tokens, the target {target.config.vocab_size}; "
            "take the tokenizer that the target was trained with"
        )
    return tokenizer
