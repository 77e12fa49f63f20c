"""Grammars by llguidance, an optional library: one wheel without dependencies.

A matcher never sees a token that ends a text: llguidance does not count such a token when it takes tokens back. It
never sees a forbidden token either, since that leaves it in error for good.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

from c2t.errors import InputError, installed_by, one_line, refusing
from c2t.grammars.constraint import Vocabulary
from c2t.kernels.masks import Mask

OPTIONS = "x-guidance"  # key of a schema by which its author changes how it is compiled, `lenient` for one
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as json.dumps writes
# Bounds on what a hostile text may cost: the defaults of llguidance 1.9, which another version may change.
LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 250_000,
    "max_grammar_size": 500_000,
}
COMPILED = 32  # grammars; each may have 80 MB of lexer states
# Kinds of text: where a grammar allows one, a mask takes all its tokens together. Other tokens are tried one by
# one, which took half of the time in masks for strings of bounded length with the library's own list.
IN_STRING = r'[^"\\\x00-\x1F\x7F]'
KINDS = [r"[\x20\x0A\x0D\x09]+", "[a-z]+", "[a-zA-Z]+"]
KINDS += [f"{IN_STRING}{count}" for count in ("{1,4}", "{1,8}", "{1,12}", "{1,16}", "{1,20}", "{1,30}", "+")]
SPECIAL = b"\xff"  # before a token that has no text
SAID = 300  # characters of its messages, which repeat what is wrong
EMPTY = "NoExtensionBias"  # what llguidance says of a grammar without texts
NO_TEXT = "the constraint allows no token of this model's vocabulary"


class GuidanceMatcher:
    """A `c2t.grammars.constraint.Matcher` around one of llguidance. on_failure: called when it gives up."""

    def __init__(self, matcher: Any, vocabulary: Vocabulary, on_failure: Callable[[], None] = lambda: None):
        self._matcher, self._tokens, self._eos = matcher, tokens_of(vocabulary), vocabulary.eos
        self._on_failure = on_failure

    def consume(self, tokens: Sequence[int]) -> None:
        """See `Matcher.consume`."""
        if not self._matcher.consume_tokens(tokens):
            raise self._failure("cannot go on")

    def rollback(self, count: int) -> None:
        """See `Matcher.rollback`."""
        if not self._matcher.rollback(count):  # rules with max_tokens or stop cannot
            raise self._failure("cannot take tokens back")

    def fill(self, mask: Mask) -> None:
        """See `Matcher.fill`."""
        self._matcher.unsafe_compute_mask_ptr(mask.address, mask.words.nbytes)
        if self._matcher.is_error():
            raise self._failure("is too complex to go on")
        if (token := mask.only) is not None and self._tokens.is_special_token(token):
            for first in self._spelled():
                mask.set_only(first)

    def allows(self, tokens: Sequence[int]) -> list[bool] | None:
        """See `Matcher.allows`."""
        allowed = [self._allows(token) for token in tokens]
        if self._matcher.is_error():
            raise self._failure("is too complex to go on")
        return None if None in allowed else allowed

    def _allows(self, token: int) -> bool | None:
        if token in self._eos:
            return self._matcher.is_accepting()
        if self._tokens.is_special_token(token):
            return None
        return self._matcher.validate_tokens([token]) == 1

    def _failure(self, what: str) -> InputError:
        """Return why it gives up."""
        self._on_failure()
        said = _error(self._matcher)
        return InputError(NO_TEXT if said == EMPTY else f"the constraint {what}: {said}")

    def forced_text(self) -> bytes:
        """See `Matcher.forced_text`."""
        return self._matcher.compute_ff_bytes()

    def forced(self) -> list[int]:
        """See `Matcher.forced`."""
        tokens = self._matcher.compute_ff_tokens()
        if tokens and self._tokens.is_special_token(tokens[0]):
            return self._spelled()
        return list(takewhile(lambda token: not self._tokens.is_special_token(token), tokens))

    def _spelled(self) -> list[int]:
        """Return the first token of text that must follow and only looks like a special token; none if it is one."""
        text = self._matcher.compute_ff_bytes()
        looks = text and not text.startswith(SPECIAL)
        return self._tokens.greedy_tokenize(text.decode(errors="ignore"))[:1] if looks else []


class Compiled:
    """A grammar for a vocabulary, whose matchers begin faster than one that is compiled for itself.

    They share one lexer, which fails for good when it has all the states that it may have, or when one of them gives
    up. Then the grammar is compiled again, so that a text does not cost another one its own.
    """

    def __init__(self, kind: str, source: str, vocabulary: Vocabulary):
        self.kind, self.source, self.vocabulary = kind, source, vocabulary
        self._made: Any = self._compile()

    def matcher(self) -> GuidanceMatcher:
        """Return a matcher at a text's beginning."""
        matcher = self._copy()
        try:
            matcher.fill(Mask(self.vocabulary.size))
        except InputError:
            matcher = self._copy()
        return matcher

    def _copy(self) -> GuidanceMatcher:
        made = self._made = self._made or self._compile()

        def worn_out() -> None:
            if self._made is made:
                self._made = None

        return GuidanceMatcher(made.deep_copy(), self.vocabulary, worn_out)

    def _compile(self) -> Any:
        """Return llguidance's matcher, which has computed a mask and can take tokens back."""
        library, tokens, mask = _library(), tokens_of(self.vocabulary), Mask(self.vocabulary.size)
        with refusing("the library cannot compile it"):  # by a number that is too long, or a panic
            grammar = _grammar(library, self.kind, self.source)
            made = library.LLMatcher(tokens, grammar, log_level=0, limits=library.LLParserLimits(**LIMITS))
        if made.is_error():
            raise InputError(f"the constraint is refused: {_error(made)}")
        GuidanceMatcher(made, self.vocabulary).fill(mask)
        if mask.empty:
            raise InputError(NO_TEXT)
        first = next(
            (token for token in mask.flags().nonzero()[:, 0].tolist() if token not in self.vocabulary.eos), None
        )
        if first is not None:
            trial = GuidanceMatcher(made.deep_copy(), self.vocabulary)
            trial.consume([first])
            trial.rollback(1)
        return made


@lru_cache(COMPILED)
def compiled(kind: str, source: str, vocabulary: Vocabulary) -> Compiled:
    """Return a compiled grammar; see `c2t.grammars.grammar.Grammar.matcher`."""
    return Compiled(kind, source, vocabulary)


@lru_cache(8)
def tokens_of(vocabulary: Vocabulary) -> Any:
    """Return llguidance's form of a tokenizer, which takes it up to a second to make."""
    library = _library()
    if not vocabulary.eos:
        raise InputError("the model has no token that ends a text, which a constraint needs")
    backend = getattr(vocabulary.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError("constraints need a fast tokenizer, with a tokenizer.json")
    backend = type(backend).from_str(backend.to_str())  # a copy, whose padding may be changed
    backend.no_padding()
    backend.no_truncation()
    with refusing("constraints do not know this tokenizer"):
        eos = sorted(vocabulary.eos)
        return library.LLTokenizer(backend.to_str(), n_vocab=vocabulary.size, eos_token=eos, slices=KINDS)


def _grammar(library: Any, kind: str, source: str) -> str:
    """Return a grammar in llguidance's own form."""
    if kind == "json":
        return library.LLMatcher.grammar_from_json_schema(source, overrides=LAYOUT)
    if kind == "regex":
        return library.LLMatcher.grammar_from_regex(source)
    try:
        return library.grammar_from("grammar", source)
    except ValueError as error:
        raise InputError(f"the grammar is neither Lark nor EBNF: {one_line(error)}") from error


def _error(matcher: Any) -> str:
    reason, _, _ = matcher.get_error().partition("<state>")
    reason, *_ = re.split(r"\n\s*\d+ \| ", reason)  # without the lines of a grammar that c2t may have written
    return " ".join(reason.split())[:SAID]


def _library() -> Any:
    try:
        import llguidance  # noqa: PLC0415 - optional
    except ImportError as error:
        raise InputError(f"constraints need llguidance: {installed_by('grammar')}") from error
    return llguidance
