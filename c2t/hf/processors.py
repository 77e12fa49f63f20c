"""Logits processors of generate along the path that the target takes through a tree."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
)

from c2t.errors import InputError
from c2t.grammars.row_constraint import RowConstraint
from c2t.hf.constraint_processor import AtPath, ConstraintProcessor
from c2t.hf.texts import GeneratedTexts
from c2t.sampling import Sampling
from c2t.verification.sampler import Path

# Those of transformers by name, for versions that lack some. These read the scores alone, ...
OF_SCORES = {
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "InfNanRemoveLogitsProcessor",
    "LogitNormalization",
    "MinPLogitsWarper",
    "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper",
    "TopHLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "TypicalLogitsWarper",
}
# ... these also the text before them, and nothing else.
OF_TEXTS = {
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "WatermarkLogitsProcessor",
}


class TextProcessors:
    """Processors of generate for `TargetSampler`. Those that read texts get one row at a time, because rows of a batch
    have texts of different lengths here; a processor of the caller's own is one of these.

    eos: tokens after which nothing is processed, as generate ends there too. constraints: of the rows, for a
    `ConstraintProcessor` among the processors. Raises InputError for processors of transformers that read anything
    else, such as further forwards of a model.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        texts: GeneratedTexts,
        eos: frozenset[int],
        constraints: Sequence[RowConstraint] = (),
    ):
        self.texts, self.eos = texts, eos
        warpers = [processor for processor in processors if isinstance(processor, TemperatureLogitsWarper)]
        self.temperature = math.prod((float(warper.temperature) for warper in warpers), start=1.0)
        Sampling(temperature=self.temperature)  # which refuses what float32 has no room for
        for processor in processors:
            if _is_from_transformers(processor) and type(processor).__name__ not in OF_SCORES | OF_TEXTS:
                raise InputError(
                    f"{type(processor).__name__} cannot be applied to trees: leave out the setting that adds it"
                )
        self.steps = [
            processor if _reads_scores(processor) else _by_row(processor, texts, constraints)
            for processor in processors
        ]

    def __call__(self, logits: Float[Tensor, "B V"], sequence: Int[Tensor, " B"], path: Path) -> Float[Tensor, "B V"]:
        """Return the processed logits (float32, as generate's) of the token after each row's path."""
        scores = logits.to(torch.float32, copy=True)
        texts: dict[int, Tensor] = {}
        for step in self.steps:
            if not isinstance(step, list):
                scores = step(sequence[:, None], scores)
                continue
            texts = texts or {index: self._text(row, path(index)) for index, row in enumerate(sequence.tolist())}
            for index, row in enumerate(sequence.tolist()):
                if texts[index] is not None:
                    scores[index] = LogitsProcessorList([step[row]])(texts[index][None], scores[index][None])[0]
        for index in (index for index, text in texts.items() if text is None):
            scores[index] = logits[index]  # those of scores alone may leave no token that a constraint allows
        return scores

    def of_scores(self) -> "TextProcessors":
        """Return those that read the scores alone."""
        other = copy.copy(self)
        other.steps = [step for step in self.steps if not isinstance(step, list)]
        return other

    def _text(self, row: int, path: Int[Tensor, " d"]) -> Int[Tensor, " t"] | None:
        """Return the text, which ends with the path's root, and the rest of the path; None past the text's end."""
        path = path[1:].to(self.texts.ids.device)
        text = torch.cat([self.texts.of(row), path])
        beyond = not self.eos.isdisjoint(path.tolist()) or len(text) >= self.texts.ids.shape[1]
        return None if beyond else text


def _is_from_transformers(processor: Any) -> bool:
    """Return True for a processor of transformers, False for one of the caller's."""
    return type(processor).__module__.startswith("transformers.")


def _reads_scores(processor: Any) -> bool:
    return _is_from_transformers(processor) and type(processor).__name__ in OF_SCORES


def _by_row(processor: Any, texts: GeneratedTexts, constraints: Sequence[RowConstraint]) -> list[Any]:
    """Return the processor for each row by itself; three know the rows of a batch by their numbers."""
    rows = range(len(texts.ids))
    if isinstance(processor, ConstraintProcessor):
        return [AtPath(row, texts.lengths[0] - row.committed) for row in constraints]
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor):
            return [_with(processor, prompt_ignore_length=ignored[row : row + 1]) for row in rows]
    if isinstance(processor, PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        return [_with(processor, _prefix_allowed_tokens_fn=lambda _, text, row=row: allowed(row, text)) for row in rows]
    return [processor] * len(rows)


def _with(processor: Any, **changed: Any) -> Any:
    other = copy.copy(processor)
    vars(other).update(changed)
    return other
