"""The texts of one call of generate: their tokens so far, where each ends, and the result."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput

from c2t.decoding import Step


class GeneratedTexts:
    """Prompts and new tokens as generate has them, (B, max_length), padded on the left.

    The criteria see each text alone, after every token; where a text ends, so does its row. Without a criterion for EOS
    tokens generate continues all rows until the last has ended, and so does this class.
    """

    def __init__(
        self,
        input_ids: Int[Tensor, "B P"],
        max_length: int,
        pad: int | None,
        criteria: StoppingCriteriaList,
        streamer: Any,
    ):
        rows, prompt = input_ids.shape
        self.ids = input_ids.new_full((rows, max_length), pad or 0)
        self.ids[:, :prompt] = input_ids
        self.lengths = [prompt] * rows
        self.ends: list[int | None] = [None] * rows
        self.criteria, self.streamer = criteria, streamer
        self.together = not any(hasattr(criterion, "eos_token_id") for criterion in criteria)

    def of(self, row: int) -> Int[Tensor, " t"]:
        """Return a row's text so far."""
        return self.ids[row, : self.lengths[row]]

    def add(self, step: Step) -> None:
        """Write a round's tokens, as far as the texts go."""
        for row, tokens in step.by_row():
            for token in tokens:
                if not self.is_open(row):
                    break
                self._write(row, token)

    def is_open(self, row: int) -> bool:
        """Return True if the row has tokens to come."""
        if self.ends[row] is None:
            return True
        if not self.together or self.lengths[row] == self.ids.shape[1]:
            return False
        return None in self.ends or self.lengths[row] < max(self.ends)

    def result(self, as_dict: bool) -> Int[Tensor, "B L"] | GenerateDecoderOnlyOutput:
        """Return the sequences, padded on the right to the longest, as a tensor or as generate's output object."""
        sequences = self.ids[:, : max(self.ends)].clone()
        return GenerateDecoderOnlyOutput(sequences=sequences) if as_dict else sequences

    def _write(self, row: int, token: int) -> None:
        self.ids[row, self.lengths[row]] = token
        self.lengths[row] += 1
        if self.streamer is not None:
            self.streamer.put(torch.tensor([token], device="cpu"))
        if self.ends[row] is None and bool(self.criteria(self.of(row)[None], None).any()):
            self.ends[row] = self.lengths[row]
