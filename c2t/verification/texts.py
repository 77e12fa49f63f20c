"""The texts of prompts that are decoded together: what each shows, and which ones a stop string has ended."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from c2t.decoding import Step, cut
from c2t.output.stoppable import StoppableText


class BatchTexts:
    """Texts by the numbers of their prompts. Without stop strings they are decoded once, at the end.

    constrained: for each text, whether it follows a constraint. eos: tokens that end a text. stopped: numbers of the
    texts that a stop string has ended.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str],
        constrained: Sequence[bool],
        max_new_tokens: int,
        eos: frozenset[int],
    ):
        self.tokenizer, self.constrained, self.max_new_tokens, self.eos = tokenizer, constrained, max_new_tokens, eos
        self.stopped: set[int] = set()
        self._texts = [new_text(tokenizer, stop, eos, kind) for kind in constrained] if stop else []
        self._shown = [""] * len(self._texts)

    def add(self, step: Step) -> None:
        """Look for stop strings in a round's tokens, up to the ends of the texts."""
        for number, tokens in step.by_row() if self._texts else ():
            text = self._texts[number]
            self._shown[number] += text.add(cut(tokens, self.max_new_tokens - text.tokens, self.eos))
            if text.stopped:
                self.stopped.add(number)

    def ends(self, tokens: Sequence[list[int]]) -> list[int]:
        """Return how many of all of its new tokens each text has."""
        if self._texts:
            return [text.tokens for text in self._texts]
        return [len(cut(new, self.max_new_tokens, self.eos)) for new in tokens]

    def finish(self, tokens: Sequence[list[int]]) -> list[str]:
        """Return the texts of these tokens, which go up to their ends."""
        if self._texts:
            return [begin + text.end() for begin, text in zip(self._shown, self._texts, strict=True)]
        return [self._whole(new, kind) for new, kind in zip(tokens, self.constrained, strict=True)]

    def _whole(self, tokens: list[int], constrained: bool) -> str:
        if not constrained:
            return self.tokenizer.decode(tokens, skip_special_tokens=True)
        written = tokens[:-1] if tokens and tokens[-1] in self.eos else tokens
        return self.tokenizer.decode(written, clean_up_tokenization_spaces=False)


def new_text(
    tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], eos: frozenset[int], constrained: bool
) -> StoppableText:
    """Return an empty text. A constrained one shows special tokens, such as those around a call of a tool, and hides
    only those that end it."""
    return StoppableText(tokenizer, stop, eos if constrained else None)
