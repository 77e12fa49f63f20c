"""The constraint of one text, at the nodes of a tree under its last committed token."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from c2t.errors import InputError
from c2t.grammars.constraint import Constraint, Matcher, Vocabulary
from c2t.kernels.masks import Mask

Path = tuple[int, ...]  # tokens after the root
MOST_GIVEN_UP = 8  # times that a matcher may give up before nothing more is drafted
LONGEST_RUN = 32  # forced tokens that are remembered: a hostile expression may force a million
LONGEST_TEXT = 512  # bytes of forced text that are remembered
DEAD_END = "the constraint allows no further token: no token of this model has the characters that it asks for"


class RowConstraint:
    """State of a constraint after the committed text, root included, and its masks after nodes of a round's tree.

    A node is identified by its path from the root. The matcher walks from node to node by taking tokens back, which
    costs less than a copy of it for each node. Along tokens that must follow it is not asked again. The target chooses
    by `required` and `allows`; a draft may also guess which tokens must follow. begin(): returns a matcher at the
    beginning of the text. vocabulary: its size. eos: tokens that end the text. nothing: the mask of no token. seconds:
    time spent in matchers so far. given_up: how often one has given up, and begun again.
    """

    def __init__(self, begin: Callable[[], Matcher], vocabulary: int, eos: frozenset[int]):
        self.begin, self.eos, self.size = begin, eos, vocabulary
        self.ended, self.seconds, self.given_up = False, 0.0, 0
        self.nothing = Mask(self.size)
        self._matcher = begin()
        self._text: list[int] = []  # committed
        self._unread: Path = ()  # end of the committed text, which the matcher has not read yet
        self._at: Path = ()  # what the matcher has consumed since the text before that
        self._masks: dict[Path, Mask] = {}
        self._allowed: dict[Path, dict[int, bool]] = {}  # path -> tokens, where none must follow it
        self._refused: dict[Path, int] = {}  # path after which the target's best token was refused -> given_up then
        self._forced: dict[Path, int] = {}  # path -> the only token that may follow it
        self._guessed: dict[Path, int] = {}  # path -> probably the only one
        self._runs: dict[bytes, Path] = {}  # text that had to follow -> its tokens
        self._room: list[Mask] = []  # reused from round to round
        self._used = 0  # of them

    @classmethod
    def of(cls, constraint: Constraint, vocabulary: Vocabulary) -> "RowConstraint":
        """Return a constraint at the beginning of a text. InputError for one that cannot be followed."""
        return cls(partial(constraint.matcher, vocabulary), vocabulary.size, vocabulary.eos)

    @property
    def may_draft(self) -> bool:
        """False where drafting costs more than it saves, because each matcher that gives up begins again."""
        return self.given_up <= MOST_GIVEN_UP

    @property
    def committed(self) -> int:
        """Number of committed tokens, without one that ended the text."""
        return len(self._text)

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit the tokens of a round; those after the end of the text are ignored."""
        if self.ended:
            return
        path = self._before_end(tokens)
        self.ended = len(path) < len(tokens)
        self._text += path
        self._unread += path
        self._masks.clear()
        self._used = 0
        self._allowed.clear()
        self._refused.clear()
        self._guessed.clear()
        count = len(path)  # plain decoding stands on the same run of forced tokens, so it goes on
        going = {} if self.ended else self._forced
        self._forced = {run[count:]: token for run, token in going.items() if run[:count] == path}

    def mask(self, path: Path) -> Mask | None:
        """Return the tokens that may follow a path. None where nothing may be drafted: after the end of the text, and
        after a token that the constraint forbids."""
        if path not in self._masks:
            if not self._possible(path):
                return None
            self._masks[path] = self._filled(path)
        return self._masks[path]

    def allows(self, path: Path, tokens: Path) -> list[bool] | None:
        """Return which of these tokens may follow a path, as its mask has them; None where it takes the mask. After a
        forward, whose weights empty the caches, the matcher answers in a fifth of a mask's time."""
        if not self._is_asked(path):
            if not self._possible(path):
                return [False] * len(tokens)
            self._remember_run(path, tokens)
        if path in self._forced:
            return [token == self._forced[path] for token in tokens]
        if (mask := self._masks.get(path)) is not None:
            return [token in mask for token in tokens]
        if (allowed := self._allowed.get(path)) is None:
            return None
        if new := [token for token in tokens if token not in allowed]:
            answer = None
            with suppress(InputError):
                answer = self._ask(path, lambda matcher: matcher.allows(new))
            if answer is None:
                return None
            allowed.update(zip(new, answer, strict=True))
        return [allowed.get(token, False) for token in tokens]  # a refusal is forgotten if the matcher starts again

    def may_choose(self, path: Path, token: int) -> bool | None:
        """Return True if the target may choose a token after a path, and none of those that it was asked for before;
        None where it takes the mask.

        A matcher at its limits refuses what it should allow, and then reads no token. So one is believed only after it
        has read what it allows.
        """
        allowed = self.allows(path, (token,))
        if allowed is None:
            return None
        if not allowed[0]:
            self._refused.setdefault(path, self.given_up)
            return False
        if path not in self._refused or path in self._masks:
            return True
        if token in self.eos:
            return None
        with suppress(InputError):
            self._ask((*path, token), lambda matcher: None)
        return True if self.given_up == self._refused[path] else None

    def only(self, path: Path) -> int | None:
        """Return the token that must follow a path, if it is known."""
        return self._forced.get(path)

    def follows(self, path: Path, token: int) -> bool:
        """Return True if a token may follow a path."""
        if (allowed := self.allows(path, (token,))) is not None:
            return allowed[0]
        mask = self.mask(path)
        return mask is not None and token in mask

    def required(self, path: Path) -> Mask | None:
        """Return the mask by which the target chooses after a path of its own choices; None after the end of the text.
        Raises InputError where no token may follow."""
        mask = self.mask(path)
        if mask is not None and mask.empty:
            self._ask(path, lambda matcher: matcher.fill(mask))  # raises its own reason, if it has one
            if mask.empty:
                raise InputError(DEAD_END)
        return mask

    def guessed(self, path: Path, tokens: Path = ()) -> int | None:
        """Return the token that a draft may take alone after a path; None where several may follow, or none may. Text
        that had to follow before has the tokens that it had then: a tokenizer takes five times as long as the rest of
        an answer, and may find other ones. tokens: that `allows` will be asked for."""
        if not self._is_asked(path) and path not in self._guessed and self._possible(path):
            self._guess(path, tokens)
        return self._likely(path)

    def guessed_run(self, path: Path) -> Path:
        """Return the tokens that a draft may take alone after a path, as far as they were asked for."""
        token, end = self.guessed(path), path
        while token is not None:
            end = (*end, token)
            token = self._likely(end)
        return end[len(path) :]

    def draftable(self, path: Path) -> Mask | None:
        """Return the tokens that may be drafted after a path; None for none."""
        only = self.guessed(path)
        if only is None or path in self._forced:
            return self.mask(path)
        mask = self._spare()
        mask.set_only(only)
        return mask

    def _possible(self, path: Path) -> bool:
        """Return True if the text may continue after this path."""
        if self.ended or not path:
            return not self.ended
        return path[-1] not in self.eos and self.follows(path[:-1], path[-1])

    def _spare(self) -> Mask:
        """Return a mask that the round does not use yet."""
        self._used += 1
        while self._used > len(self._room):
            self._room.append(Mask(self.size))
        return self._room[self._used - 1]

    def _filled(self, path: Path) -> Mask:
        mask = self._spare()
        if not self._is_asked(path):
            self._remember_run(path)
        if path in self._forced:
            mask.set_only(self._forced[path])
            return mask
        try:
            self._ask(path, lambda matcher: matcher.fill(mask))
        except InputError:  # another path may still be possible
            mask.words.fill(0)
        if (only := mask.only) is not None and only not in self.eos:
            self._forced[path] = only
        return mask

    def _likely(self, path: Path) -> int | None:
        return self._forced.get(path, self._guessed.get(path))

    def _is_asked(self, path: Path) -> bool:
        """Return True if the tokens that must follow a path were asked for."""
        return path in self._forced or path in self._allowed

    def _remember_run(self, path: Path, tokens: Path = ()) -> Path:
        """Return and remember the tokens that must follow a path, or else which of `tokens` may."""

        def question(matcher: Matcher) -> tuple[Sequence[int], list[bool] | None]:
            run = matcher.forced()
            return run, None if run else matcher.allows(tokens)

        run: Path = ()
        with suppress(InputError):
            forced, answer = self._ask(path, question)
            run = self._before_end(forced)[:LONGEST_RUN]
            self._forced |= _steps(path, run)
            if not run:
                self._allowed[path] = dict(zip(tokens, answer or (), strict=False))
        return run

    def _guess(self, path: Path, tokens: Path) -> None:
        """Ask for the text that must follow a path, and for its tokens if it is new; or else which of `tokens` may."""

        def question(matcher: Matcher) -> tuple[bytes, list[bool] | None]:
            text = matcher.forced_text()
            return text, None if text else matcher.allows(tokens)

        with suppress(InputError):
            text, answer = self._ask(path, question)
            if not text:
                self._allowed[path] = dict(zip(tokens, answer or (), strict=False))
            elif text in self._runs:
                self._guessed |= _steps(path, self._runs[text])
            elif (run := self._remember_run(path, tokens)) and len(text) <= LONGEST_TEXT:
                self._runs[text] = run

    def _ask(self, path: Path, question: Callable[[Matcher], Any]) -> Any:
        """Return the matcher's answer after a path. One that gives up, perhaps by what it was asked before, starts
        again and is asked once more."""
        begin = time.perf_counter()
        try:
            self._move(path)
            return question(self._matcher)
        except InputError:
            self.given_up += 1
            self._start_again()
        finally:
            self.seconds += time.perf_counter() - begin
        try:
            self._move(path)
            return question(self._matcher)
        except InputError:
            self._start_again()
            raise

    def _start_again(self) -> None:
        """Take a new matcher, and forget what was refused: the old one may have met its limits before it gave up."""
        for answers in self._allowed.values():
            for token in [token for token, may in answers.items() if not may]:
                del answers[token]
        self._matcher, self._at, self._unread = self.begin(), (), tuple(self._text)

    def _move(self, path: Path) -> None:
        """Let the matcher stand after a path."""
        way, same = self._unread + path, 0
        for new, old in zip(way, self._at, strict=False):
            if new != old:
                break
            same += 1
        if back := len(self._at) - same:
            self._matcher.rollback(back)
        if len(way) > same:
            self._matcher.consume(way[same:])
        self._at, self._unread = path, ()

    def _before_end(self, tokens: Sequence[int]) -> Path:
        end = next((index for index, token in enumerate(tokens) if token in self.eos), len(tokens))
        return tuple(tokens[:end])


def _steps(path: Path, run: Path) -> dict[Path, int]:
    """Return the token after each path along a run."""
    return {(*path, *run[:index]): token for index, token in enumerate(run)}
