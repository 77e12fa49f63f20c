"""A constraint in transformers' generate: a logits processor, which `TreeDecoding` also shows to the draft."""

from collections.abc import Iterable, Sequence

from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from c2t.errors import InputError, check_kind
from c2t.grammars.constraint import Constraint, Vocabulary
from c2t.grammars.constraints import Constraints
from c2t.grammars.row_constraint import RowConstraint


class ConstraintProcessor(LogitsProcessor):
    """Lets generate write only what a constraint allows: `generate(..., logits_processor=[ConstraintProcessor(...)])`.

    eos_token_id: tokens that end a text, by default the tokenizer's. Every call of generate starts again, except one
    whose texts go on where the last call's limit of tokens has cut them. Raises InputError for beams.
    """

    def __init__(
        self,
        constraint: Constraint,
        tokenizer: PreTrainedTokenizerBase,
        eos_token_id: int | Sequence[int] | None = None,
    ):
        check_kind("constraint", constraint, Constraint, "a constraint, such as Grammar.json_schema(...)")
        ends = tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        self.eos = frozenset(ends if isinstance(ends, Sequence) else [] if ends is None else [ends])
        self.constraint, self.tokenizer = constraint, tokenizer
        self._rows: list[RowConstraint] = []
        self._texts: list[list[int]] = []
        self._start = 0  # tokens of a text that the constraint does not see

    def begin(self, texts: list[list[int]], vocabulary: int) -> list[RowConstraint]:
        """Return constraints after these texts, for a call with trees; `end` follows."""
        if not self._goes_on(texts, vocabulary):
            self._texts, self._start = [], len(texts[0])
        return self._after(texts, vocabulary)

    def end(self, texts: list[list[int]]) -> None:
        """Keep the texts that a call with trees has written."""
        self._rows, self._texts = [], [text[:-1] for text in texts]

    def _after(self, texts: list[list[int]], vocabulary: int) -> list[RowConstraint]:
        of = Vocabulary(self.tokenizer, vocabulary, self.eos)
        rows = [RowConstraint.of(self.constraint, of) for _ in texts]
        for row, text in zip(rows, texts, strict=True):
            row.advance(text[self._start :])
        return rows

    def __call__(self, input_ids: Int[Tensor, "B L"], scores: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        texts = input_ids.tolist()
        if not self._goes_on(texts, scores.shape[1]):
            self._start = len(texts[0])
            self._rows = self._after(texts, scores.shape[1])
        else:
            for row, text in zip(self._rows, texts, strict=True):
                row.advance(text[-1:])
        self._texts, rows = texts, range(len(texts))
        return Constraints(self._rows).masked(scores, rows, [()] * len(rows))

    def _goes_on(self, texts: list[list[int]], vocabulary: int) -> bool:
        """Return True if these are the last texts, each with one more token. InputError where they changed places."""
        before, last = [text[:-1] for text in texts], [text[-1] for text in texts]
        if before != self._texts:
            if len(before) == len(self._texts) and all(text in self._texts for text in before):
                raise InputError("a constraint cannot follow beams, which change places: leave out num_beams")
            return False
        self._rows = self._rows or self._after(before, vocabulary)
        possible = [row.ended or token in row.required(()) for row, token in zip(self._rows, last, strict=True)]
        if not all(possible) and len(texts) > 1:
            raise InputError("a text does not follow the constraint: leave out num_beams, or give a new processor")
        return all(possible) and not all(
            row.ended or token in self.eos for row, token in zip(self._rows, last, strict=True)
        )


class AtPath:
    """The processor of one row of a tree: texts are the committed one, and a path of the tree after it.

    prompt: tokens before the constraint's text.
    """

    def __init__(self, row: RowConstraint, prompt: int):
        self.row, self.prompt = row, prompt

    def __call__(self, input_ids: Int[Tensor, "1 L"], scores: Float[Tensor, "1 V"]) -> Float[Tensor, "1 V"]:
        path = tuple(input_ids[0, self.prompt + self.row.committed :].tolist())
        return Constraints([self.row]).masked(scores, [0], [path])


def only_constraint(processors: Iterable[object]) -> ConstraintProcessor | None:
    """Return the constraint among generate's processors, None if there is none; InputError for several."""
    constraints = [processor for processor in processors if isinstance(processor, ConstraintProcessor)]
    if len(constraints) > 1:
        raise InputError(f"{len(constraints)} constraints among the logits processors: give one")
    return constraints[0] if constraints else None
