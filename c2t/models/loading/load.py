"""Pairs of target and draft, by name or by their parts."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from c2t.errors import InputError, check_kind, check_truth
from c2t.grammars.constraint import Vocabulary
from c2t.kernels.decoder_layers import int8_is_fastest, rounds
from c2t.kernels.device import checked_device
from c2t.models.drafts.session import BaseDraft
from c2t.models.gguf.conversion import converted
from c2t.models.gguf.reader import is_gguf
from c2t.models.loading.fingerprint import fingerprint, hash_of, weights_fingerprint
from c2t.models.loading.hub import fetch, on_this_machine
from c2t.models.loading.load_target import AS_STORED, DEFAULT, ROUNDED, Dtype, load_target, load_tokenizer
from c2t.models.loading.names import PLACES, DraftName, kind_of, parse, parts, place_in, place_of
from c2t.models.loading.own_model import default_draft, pair_and_target
from c2t.models.loading.registry import DRAFTS, ENDINGS, DraftKind, DraftRequest
from c2t.models.loading.trained import classifier_of, trained_for
from c2t.models.target import gguf_target
from c2t.models.target.target import Target
from c2t.models.target.tensor_parallel import local_device
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.storage import paths as checkpoints
from c2t.storage.published import PUBLISHED


@dataclass(frozen=True, repr=False)
class Pair:
    """Target, its draft, the tokenizer of both, and their names.

    template: the chat template that the target was trained with: a published one's name, "chat" for the tokenizer's
    own, "" for plain text. sources: part -> (path or Hub id, fingerprint or commit). rounded: the draft's head is
    computed in 8 bits.
    """

    name: str
    target: Target
    draft: BaseDraft
    tokenizer: PreTrainedTokenizerBase
    template: str
    sources: dict[str, tuple[str, str]]
    rounded: bool = False

    def __repr__(self) -> str:
        parts = ", ".join(f"{part}={source!r}" for part, (source, _) in self.sources.items())
        return f"Pair({self.name!r}, {parts}, dtype={self.arithmetic!r}, device={str(self.target.device)!r})"

    @property
    def arithmetic(self) -> str:
        """Name of the data type that the pair is computed in: with `sources`, what costs and results depend on."""
        return self.dtype + ", head in 8 bits" * (self.rounded and not self.target.rounded)

    @property
    def dtype(self) -> str:
        """Name of the target's data type, as the command line has it."""
        return self.target.rounded_to or str(self.target.embed_tokens.weight.dtype).removeprefix("torch.")

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens that constraints are about."""
        return Vocabulary(self.tokenizer, self.target.config.vocab_size, self.target.eos)

    @property
    def heads(self) -> Path | None:
        """Folder that the draft's own folder lies in, with their provenance.json; None for a draft without a folder."""
        draft = Path(self.sources["draft"][0].removesuffix(NGRAMS))
        return draft.parent if draft.is_dir() else None

    @property
    def classifier(self) -> str | Path:
        """The place of the pair's classifier: next to its head if one is there, else by the pair's name."""
        folder = self.heads and classifier_of(Path(parse(self.sources["draft"][0]).name).resolve())
        if folder and checkpoints.is_classifier(folder) and folder != checkpoints.find(self.name, "classifier"):
            return folder
        return self.name

    @property
    def marks(self) -> dict[str, str]:
        """Part -> fingerprint or commit: what results of the pair depend on."""
        return {part: mark for part, (_, mark) in self.sources.items()}


def load_pair(
    pair: str | Path | None = None,
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

    pair: may also be a model of one's own, which is then the target: a folder, a Hub id or a GGUF file. Without a draft
    it gets the one that `default_draft` knows. draft: may also name one of the pair's own drafts, or "lookup", which
    drafts from the text alone, without a model. "+ngrams" at its end mixes it with the text's n-grams
    (`c2t.models.wrappers.ngrams`), "+ngrams=WEIGHT" does so without what was learned; "+fit" or "+bigrams" before that
    reweights a draft by the path, by a file that comes with it (`c2t.models.wrappers.reweighted`); "+candidates=K"
    there drafts K tokens of a depth only (`c2t.models.wrappers.candidates`); "+taps=2,18,33" before that names the
    layers of the target whose inputs an EAGLE-3 head reads, where its config does not say it clearly, and "+anchor=yes"
    or "+anchor=no" whether a block drafter drafts from the anchor. device: by default a GPU if there is one, else the
    CPU. dtype: by default the checkpoint's; on a CPU, without device_map, what `default_dtype` says if the draft has no
    model, is a language model, or has an EAGLE layer, which is rounded to 8 bits then where that is faster; else
    float32. torch.int8: the target's layers and LM head, and an EAGLE layer, are computed in 8 bits; torch.int4: the
    target's layers in 4 bits, and its LM head except for the largest logits. A GGUF file's blocks are computed with as
    they are, where this machine and the family can; it is called int4 if some have 4 bits, else int8. device_map:
    spreads a large target over devices as in transformers. trust_remote_code: run the Python code that comes with the
    files of target and draft, which are refused without it if they ask for that. tensor_parallel: split the target over
    the processes of torchrun (`c2t.models.target.tensor_parallel`); each has a whole draft. The target of smollm2 is
    converted from its package the first time. Warns of a head that was trained for other weights of the target. Raises
    InputError for unknown names, unreadable checkpoints, and parts that do not fit each other.
    """
    for name, reference in (("pair", pair), ("target", target), ("draft", draft)):
        check_kind(name, reference, PLACES, "a name, a folder or a Hub id")
    check_kind("dtype", dtype, torch.dtype | None, "one of torch, such as torch.bfloat16")
    check_kind("device_map", device_map, str | dict | None, "a word or a mapping, as in transformers")
    check_truth("trust_remote_code", trust_remote_code)
    check_truth("tensor_parallel", tensor_parallel)
    pair, target = pair_and_target(pair, target)
    named = parse(draft)
    if pair is None and draft is None and target is not None:
        choice = default_draft(target)
        pair, named = choice.pair, parse(choice.draft)
    _check_named(pair, named)
    where = _device(local_device(device) if tensor_parallel else device)
    target_place = str(_target_place(pair if target is None else target))
    draft_place, folder, kind = _resolved(pair, named)
    types = _arithmetic(kind, folder, where, dtype, device_map, tensor_parallel)
    if dtype is None and is_gguf(target) and where.type == "cpu" and device_map is None and not tensor_parallel:
        types = types._replace(target=AS_STORED)
    model = load_target(target_place, where, types.target, device_map, trust_remote_code, tensor_parallel)
    tokenizer = load_tokenizer(target_place, model, trust_remote_code)
    rounded = types.rounded and rounds(model.embed_tokens.weight.shape[1])
    reads = named.taps, named.anchor
    request = DraftRequest(model, where, types.draft, tokenizer, *reads, rounded, device_map, trust_remote_code)
    loaded, source = _load(named, kind, draft_place, folder, request)
    if kind.trained:
        _check_trained_for(folder, target_place)
    # A Hub checkpoint is known by its commit: its files may be there twice, and in part only.
    commit = getattr(model.config, "_commit_hash", None) or fingerprint(Path(target_place))
    published = PUBLISHED.get(pair or "")
    template = published.template if published else "chat" * bool(tokenizer.chat_template)
    sources = {"target": (target_place, commit), "draft": source}
    return Pair(pair or checkpoints.name_of(target_place), model, loaded, tokenizer, template, sources, rounded)


def load_draft(draft: str | Path, target: Target, trust_remote_code: bool = False) -> BaseDraft:
    """Load a draft for a loaded target, onto its device and in its dtype, and tap the layers that it reads.

    draft: a folder, a Hub id, or the name of a pair for its default one, with endings as in `load_pair`.
    InputError for one that cannot be loaded or belongs to another target.
    """
    named = parse(draft)
    kind, folder = named.without_files, Path()
    if kind is None:
        folder = fetch(place_of(named))
        kind = kind_of(folder)
    dtype = target.model.dtype
    request = DraftRequest(
        target, target.device, dtype, taps=named.taps, anchor=named.anchor, trust_remote_code=trust_remote_code
    )
    loaded = kind.load(folder, request)
    for text, number in named.endings.items():
        loaded = ENDINGS[text].wrap(loaded, number, folder, target)
    return loaded


def with_ngrams(pair: Pair, prior_weight: float | None = None) -> Pair:
    """Return the pair with its draft mixed with the text's n-grams, by default with the weights that were learned for
    it, else those for drafts of its kind; InputError if it is already."""
    if pair.draft.has_ngrams:
        raise InputError(f"the draft of {pair.name} has {NGRAMS} already")
    folder = Path(parse(pair.sources["draft"][0]).name)
    draft, source = _ended(pair.draft, pair.sources["draft"], NGRAMS, prior_weight, folder, pair.target)
    return replace(pair, draft=draft, sources={**pair.sources, "draft": source})


def _load(
    named: DraftName, kind: DraftKind, name: str, folder: Path, request: DraftRequest
) -> tuple[BaseDraft, tuple[str, str]]:
    """Load a draft with its endings; return also its source: the name that loads it, and its fingerprint."""
    draft = kind.load(folder, request)
    source = f"{name}{named.reads}", f"{fingerprint(folder)}{named.reads}" if kind.part else name
    for text, number in named.endings.items():
        draft, source = _ended(draft, source, text, number, folder, request.target)
    return draft, source


def _ended(
    draft: BaseDraft, source: tuple[str, str], text: str, number: float | None, folder: Path, target: Target
) -> tuple[BaseDraft, tuple[str, str]]:
    """Return the draft with an ending, and its source."""
    (name, mark), ending = source, ENDINGS[text]
    wrapped = ending.wrap(draft, number, folder, target)
    mark += f"{text}={hash_of([folder / ending.file])}" if ending.file else f"{text}:{wrapped.mark}"
    return wrapped, (f"{name}{text}" + ("" if number is None else f"={number:g}"), mark)


def _check_named(pair: str | None, draft: DraftName) -> None:
    """Raise InputError for no name, and for a draft that only a pair's name could bring along."""
    if draft.name is not None and not str(draft.name):
        raise InputError(f"the name of the draft is empty: give one of {', '.join(DRAFTS)}, a folder or a Hub id")
    if pair is None and (draft.name is None or str(draft.name) in parts()):
        without = ", ".join(name for name, kind in DRAFTS.items() if kind.part is None)
        raise InputError(f"a target without a pair's name needs a draft: its folder or Hub id, or {without}")


def _resolved(pair: str | None, draft: DraftName) -> tuple[str, Path, DraftKind]:
    """Return a draft's name, its folder, into which it is downloaded, and its kind."""
    if draft.without_files:
        return str(draft.name), Path(), draft.without_files
    source, kind = place_in(pair, draft)
    folder = fetch(source)
    return str(source), folder, kind or kind_of(folder)


class _Arithmetic(NamedTuple):
    """Data types of a target and of a draft that is a language model. rounded: an EAGLE layer is, to 8 bits."""

    target: Dtype
    draft: Dtype
    rounded: bool = False


def _arithmetic(
    kind: DraftKind,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    device_map: str | dict | None,
    tensor_parallel: bool,
) -> _Arithmetic:
    """Return what a pair with this draft is computed in; InputError for int8 or int4 on other machines than one CPU."""
    eagle = kind.eagle_layer(folder)
    if dtype in ROUNDED:
        if device.type != "cpu" or device_map is not None or tensor_parallel:
            name = ROUNDED[dtype]
            raise InputError(
                f"{name} is computed on one CPU: choose it, without --device-map and --tp, or another dtype"
            )
        return _Arithmetic(dtype, torch.float32, eagle)
    if dtype is None and device.type == "cpu" and device_map is None:
        if (eagle or kind.part is None or kind.language_model) and not tensor_parallel:
            return _Arithmetic(DEFAULT, DEFAULT, eagle and int8_is_fastest())
        return _Arithmetic(torch.float32, torch.float32)
    return _Arithmetic(dtype or "auto", dtype or "auto")


def _target_place(reference: str | Path) -> Path | str:
    """Return the target's folder or Hub id; a GGUF file, and one that comes in a package, is converted once."""
    if is_gguf(reference):
        return converted(checkpoints.usable(reference))
    if reference == gguf_target.PAIR and checkpoints.find(reference, "target") is None:
        return gguf_target.install(gguf_target.home())
    return checkpoints.resolve(reference, "target")


def _device(name: str | torch.device | None) -> torch.device:
    device = checked_device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # kernels and graphs run on the current one
    return device


def _check_trained_for(head: Path, target: str) -> None:
    """Warn if the head's pair says that it was trained for other weights of the target."""
    folder, wanted = on_this_machine(target), trained_for(head.parent)
    if folder and wanted not in (None, weights_fingerprint(folder)):
        warnings.warn(
            f"{head} was trained for other weights than those of {target} (another quantisation, for instance): the "
            "text stays exact, but fewer of its tokens may be accepted",
            stacklevel=3,
        )
