"""Tree decoding as a decoding method of transformers' generate."""

import inspect
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput

from c2t.classifier import TreeClassifier
from c2t.decoding import Step, decode
from c2t.errors import InputError, check_truth, short_repr
from c2t.hf.constraint_processor import only_constraint
from c2t.hf.processors import TextProcessors
from c2t.hf.request import check_arguments, check_config, check_streaming, prompts_of
from c2t.hf.texts import GeneratedTexts
from c2t.models.drafts.language_model import DraftLM, check_vocabulary
from c2t.models.drafts.session import BaseDraft
from c2t.models.loading.load import load_draft
from c2t.models.loading.names import check_draft
from c2t.models.loading.names import parse as parse_draft
from c2t.models.loading.trained import classifier_of
from c2t.models.target.stock import attends_by_softmax
from c2t.models.target.target import ATTENTION, Target, TargetSession, check_attention, check_forward
from c2t.policies import C2T
from c2t.policies.default import default_policy
from c2t.policies.spec import parse
from c2t.protocols import Policy
from c2t.sampling import Sampling
from c2t.storage import paths as checkpoints
from c2t.verification.compatibility import check_compatible, check_policy, on_device
from c2t.verification.target_verifier import TargetVerifier


class TreeDecoding:
    """Decoding method for generate: `model.generate(**inputs, custom_generate=TreeDecoding(draft=...))` returns the
    model's own text.

    draft: folder or Hub id of a draft head, or of a language model with the same tokens. It may also be the name of a
    pair, "lookup" for n-grams of the text, or a loaded language model. None is for policies without a draft.

    policy: the tree construction, or its text (`threshold:threshold=0.1`). classifier: instead of a policy, C2T with
    this classifier (folder, Hub id or name of a pair); beta: its threshold. Without all of them the policy is
    `default_policy` of the pair that `draft` names.

    seed: of sampled texts; None takes one from torch's global generator (torch.manual_seed). streamer: gets the text
    token by token.

    What is loaded for a model is cached as long as the model exists. Raises InputError for unsupported arguments.
    """

    def __init__(
        self,
        draft: str | Path | PreTrainedModel | None = None,
        *,
        policy: Policy | str | None = None,
        classifier: str | Path | TreeClassifier | None = None,
        beta: float | None = None,
        seed: int | None = None,
        streamer: BaseStreamer | None = None,
        trust_remote_code: bool = False,
    ):
        described = isinstance(policy, str)  # by a text that may read a classifier
        if policy is not None and not ((classifier is None or described) and beta is None):
            raise InputError("policy chooses the trees: leave out classifier and beta, or the policy")
        check_truth("trust_remote_code", trust_remote_code)
        if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
            raise InputError(
                f"streamer = {short_repr(streamer)} takes no tokens: give one of transformers' kind, or none"
            )
        if draft is not None and not isinstance(draft, PreTrainedModel):
            check_draft(draft)
        self.policy = _policy_of(draft, policy, classifier, beta) if policy is None or described else policy
        check_policy(self.policy, sys.maxsize, sys.maxsize)  # a model's own limits are checked in `__call__`
        if not self.policy.exact:
            raise InputError(f"{type(self.policy).__name__} is not exact: its text would not be the model's own")
        if draft is None and getattr(self.policy, "policy", self.policy).levels:
            raise InputError("draft: give a folder, a Hub id, the name of a pair, lookup, or a loaded language model")
        Sampling(seed=0 if seed is None else seed)  # raises InputError for an invalid seed
        self.draft, self.seed, self.streamer, self.trust_remote_code = draft, seed, streamer, trust_remote_code
        self._loaded: weakref.WeakKeyDictionary[PreTrainedModel, Loaded] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Int[Tensor, "B P"],
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Int[Tensor, "B L"] | GenerateDecoderOnlyOutput:
        """Decode the inputs that generate has prepared; generate calls it."""
        check_config(generation_config)
        check_arguments(model_kwargs | {"assistant_model": _given_to_generate("assistant_model")})
        pad, eos = _special_tokens(generation_config)
        max_length = stopping_criteria.max_length or generation_config.max_length
        loaded = self._for(model)
        policy = on_device(self.policy, loaded.target.device)
        prompts = prompts_of(input_ids, model_kwargs, max_length, loaded.target.max_positions)
        streamer = self.streamer if self.streamer is not None else _given_to_generate("streamer")
        check_streaming(prompts, streamer)
        texts = GeneratedTexts(input_ids, max_length, pad, stopping_criteria, streamer)
        constraint = only_constraint(logits_processor)
        rows = constraint and constraint.begin(input_ids.tolist(), loaded.target.config.vocab_size)
        with borrowed(loaded):
            verifier = CallerVerifier(
                loaded.target,
                policy,
                prompts,
                max_new_tokens=max_length - input_ids.shape[1],
                sampling=self._sampling(generation_config),
                eos=eos,
                processors=TextProcessors(logits_processor, texts, eos, rows or ()),
                constraints=rows,
                texts=texts,
            )
            if self.streamer is not None:  # generate has given the prompt to its own streamer only
                streamer.put(input_ids.cpu())
            for step in decode(verifier, loaded.draft, policy):
                texts.add(step)
        if streamer is not None:
            streamer.end()
        if constraint:
            constraint.end(texts.result(as_dict=False).tolist())
        return texts.result(generation_config.return_dict_in_generate)

    def _sampling(self, config: GenerationConfig) -> Sampling:
        """Return greedy settings, or sampling from the logits that generate's processors return."""
        if not config.do_sample:
            return Sampling()
        seed = int(torch.randint(2**62, (), device="cpu")) if self.seed is None else self.seed
        return Sampling(temperature=1.0, seed=seed)

    def _for(self, model: PreTrainedModel) -> "Loaded":
        """Return the target and the draft for a model, loaded again if its embeddings have been replaced."""
        loaded = self._loaded.get(model)
        if loaded is None or not loaded.of(model):
            loaded = Loaded.load(model, self.draft, self.trust_remote_code)
            check_compatible(self.policy, loaded.target)
            self._loaded[model] = loaded
        return loaded


class Loaded(NamedTuple):
    """A caller's model as target (a weak reference), the draft loaded for it, and the layers that the draft reads."""

    target: Target
    draft: BaseDraft | None
    taps: tuple[int, ...]

    @classmethod
    def load(cls, model: PreTrainedModel, draft: str | Path | PreTrainedModel | None, trust: bool) -> "Loaded":
        """Load the draft of a model."""
        with _unchanged(model):
            _take_masks(model)
            target = Target(weakref.proxy(model))
            if draft is None:
                return cls(target, None, ())
            if isinstance(draft, PreTrainedModel):
                with _unchanged(draft):
                    loaded = DraftLM(Target(draft), target.config.vocab_size)
                check_vocabulary(loaded.model, target, type(draft).__name__)
                return cls(target, loaded, ())
            try:
                return cls(target, load_draft(draft, target, trust), target.taps)
            finally:
                target.tap(())

    def of(self, model: PreTrainedModel) -> bool:
        """Return True if the model still has the modules that this was loaded for."""
        embeddings = self.target.embed_tokens, self.target.lm_head
        return embeddings == (model.get_input_embeddings(), model.get_output_embeddings())


class CallerVerifier(TargetVerifier):
    """Verifier with the caller's model, for texts that end by generate's criteria."""

    texts: GeneratedTexts | None

    def __init__(self, *parts: Any, texts: GeneratedTexts, **settings: Any):
        super().__init__(*parts, **settings)
        self.texts = texts

    def fork(self, session: TargetSession) -> "CallerVerifier":
        """See `TargetVerifier.fork`; tokens that will be rolled back are not added to the texts."""
        fork: CallerVerifier = super().fork(session)
        fork.texts = None
        return fork

    def unfinished(self, step: Step) -> list[int]:
        """See `TargetVerifier.unfinished`."""
        by_count = super().unfinished(step)
        if self.texts is None:
            return by_count
        return [index for index, row in enumerate(step.rows.tolist()) if self.texts.is_open(row)]


@contextmanager
def borrowed(loaded: Loaded) -> Iterator[None]:
    """Set the models of a call up for trees; restore them afterwards."""
    target, draft = loaded.target, loaded.draft
    _check_hooks(target)
    models = [target.model, *(draft.language_models if draft else ())]
    with _unchanged(*models):
        for model in models:
            model.eval()
            _take_masks(model)
            check_attention(model)
        check_forward(target.model)
        target.tap(loaded.taps)
        try:
            yield
        finally:
            target.tap(())


def _take_masks(model: PreTrainedModel) -> None:
    """Switch a model to SDPA (or to eager attention) if its attention is one of transformers' that takes no tree mask.

    A flash kernel is an example.
    """
    if model.config._attn_implementation not in ATTENTION and attends_by_softmax(model):
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")


@contextmanager
def _unchanged(*models: PreTrainedModel) -> Iterator[None]:
    """Restore the models' training flags and attention at the end of the block."""
    training = [module for model in models for module in model.modules() if module.training]
    attention = [model.config._attn_implementation for model in models]
    try:
        yield
    finally:
        for module in training:
            module.training = True
        for model, implementation in zip(models, attention, strict=True):
            if model.config._attn_implementation != implementation:
                model.set_attn_implementation(implementation)


def _check_hooks(target: Target) -> None:
    """Raise InputError if the model itself or its LM head has hooks, which a tree's forward would skip."""
    inside = set(target.model.base_model.modules())
    hooked = [module for module in target.model.modules() if module._forward_hooks or module._forward_pre_hooks]
    if outside := [module for module in hooked if module not in inside]:
        raise InputError(f"{type(outside[0]).__name__} has a forward hook, which trees would pass over: remove it")


def _policy_of(draft: Any, text: str | None, classifier: str | Path | TreeClassifier | None, beta: float | None) -> Any:
    """Return the policy that a text describes; without one C2T with this classifier, or `default_policy` of the pair
    that `draft` names."""
    name = draft.partition("+")[0] if isinstance(draft, str) else ""
    read = []

    def its_classifier(other: str | None = None) -> TreeClassifier:
        given = (other, classifier, _classifier_for(draft))
        chosen = next((source for source in given if source is not None), None)
        if chosen is None:
            raise InputError(f"policy = {text!r} reads a classifier: give it with classifier=")
        read.append(chosen)
        return chosen if isinstance(chosen, TreeClassifier) else TreeClassifier.from_pretrained(chosen)

    if text is not None or (classifier is None and beta is None):
        made = parse(default_policy(name) if text is None else text, its_classifier)
        if classifier is not None and classifier not in read:
            raise InputError(f"policy = {text!r} reads no classifier: leave {short_repr(classifier)} out")
        return made
    if classifier is None:
        if not name or not checkpoints.is_name(name) or not checkpoints.find(name, checkpoints.CLASSIFIER):
            raise InputError(f"beta = {beta} is a classifier's threshold: give the classifier too")
        classifier = name
    if not isinstance(classifier, TreeClassifier):
        classifier = TreeClassifier.from_pretrained(classifier)
    return C2T(classifier, beta=beta)


def _classifier_for(draft: Any) -> str | Path | None:
    """Return the classifier of a draft: a pair's name, or the folder next to that of a head; None if it has none."""
    if not isinstance(draft, str | Path):
        return None
    name = parse_draft(draft).name
    if name is None or checkpoints.is_name(name):
        return name
    folder = classifier_of(Path(name).resolve())
    return folder if checkpoints.is_classifier(folder) else None


def _special_tokens(config: GenerationConfig) -> tuple[int | None, frozenset[int]]:
    """Return generate's padding token and the tokens that end a text."""
    pad, eos = config._pad_token_tensor, config._eos_token_tensor
    return None if pad is None else int(pad), frozenset([] if eos is None else eos.tolist())


def _given_to_generate(name: str) -> Any:
    """Return an argument of generate that it does not pass to decoding methods.

    Without this, generate would never end a streamer, and would ignore a draft model without a message.
    """
    frame, code = inspect.currentframe(), inspect.unwrap(GenerationMixin.generate).__code__
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get(name)
