"""How often a draft's first guess is the target's own token: a cheap check that a head is read as it was trained.

A wrong alignment, wrong layers or another target's head never change the text. They show as guesses that are seldom
right, and a benchmark would only say that the head is slow.
"""

from collections.abc import Sequence
from typing import NamedTuple

from c2t.errors import InputError
from c2t.models.drafts.session import BaseDraft
from c2t.models.loading.load import Pair
from c2t.policies.chain import Chain
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import Continuation, write_continuations
from c2t.sampling import Sampling
from c2t.verification.prompt_ids import check_length

TOKENS = 64  # of the text that is judged
LOW = 0.15  # a share below which a reading is doubtful: smollm2's eagle3 has 0.32, and of wrong layers 0.02
GUESS = Chain(length=1)


class FirstGuess(NamedTuple):
    """How many of so many guesses at a text's next token were the target's. otherwise: the same of a block drafter
    with its other alignment; None for other drafts."""

    right: int
    of: int
    otherwise: int | None = None

    @property
    def line(self) -> str:
        """The figures, and below LOW what may be wrong, in one line."""
        said = f"first guess: {self.right} of {self.of} tokens are the target's ({self.right / self.of:.0%})"
        if self.otherwise is not None:
            said += f", with the other alignment {self.otherwise / self.of:.0%}"
        if self.right >= LOW * self.of:
            return said
        return f"{said}; smollm2's heads have 27 to 71 %: so few show another target's head, wrong layers or alignment"


def first_guess(pair: Pair, ids: Sequence[int]) -> FirstGuess:
    """Decode TOKENS tokens after a prompt plainly at temperature 0, and compare each with the draft's most probable one
    there. Wrappers of the draft, such as n-grams, are left out. InputError for a draft that reads no model, for a
    prompt that is too long, and for a text of one token."""
    draft = pair.draft.bare
    if draft.uniform:
        raise InputError("the draft has no head or model whose guesses could be checked: name one with --draft")
    beyond = GUESS.levels + 1
    check_length(len(ids), TOKENS + beyond, pair.target.max_positions, "the prompt")
    (text,) = write_continuations(
        pair.target, [ids], max_new_tokens=TOKENS, beyond=beyond, sampling=Sampling(0.0), eos=pair.target.eos
    )
    guesses = text.end - 1 - text.prompt
    if not guesses:
        raise InputError(
            "the target ends its text with the first token, so nothing can be guessed: give another prompt"
        )
    other = draft.realigned()
    return FirstGuess(_right(draft, text), guesses, None if other is None else _right(other, text))


def _right(draft: BaseDraft, text: Continuation) -> int:
    """Return how many tokens of the text, from the second one on, are the draft's first guesses."""
    _, *rounds = replay_all(draft, GUESS, [text])
    return sum(int(step.accepted.length.sum()) for step in rounds)
