"""How often a draft's first guess is the target's own token: a cheap check that a head is read as it was trained.

A wrong alignment, wrong layers or another target's head never change the text. They show as guesses that are seldom
right, and a benchmark would only say that the head is slow.
"""

from collections.abc import Sequence
from typing import NamedTuple

from c2t.errors import InputError
from c2t.models.drafts.session import BaseDraft, WrappedDraft
from c2t.models.loading.load import Pair
from c2t.policies.chain import Chain
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import write_continuations
from c2t.sampling import Sampling
from c2t.verification.prompt_ids import check_length

TOKENS = 64  # of the text that is judged
LOW = 0.3  # a share below which a reading is doubtful


class FirstGuess(NamedTuple):
    """How many of so many guesses at a text's next token were the target's."""

    right: int
    of: int

    @property
    def share(self) -> float:
        """The right ones as a share of all."""
        return self.right / self.of

    @property
    def line(self) -> str:
        """The figures, and below LOW what may be wrong, in one line."""
        said = f"first guess: {self.right} of {self.of} tokens are the target's ({self.share:.0%})"
        if self.share >= LOW:
            return said
        return f"{said}: a head that fits has 50 to 80 %; fewer show another target's head, wrong layers or alignment"


def first_guess(pair: Pair, ids: Sequence[int], tokens: int = TOKENS) -> FirstGuess:
    """Decode `tokens` tokens after a prompt plainly at temperature 0, and compare each with the draft's most probable
    one there. Wrappers of the draft, such as n-grams, are left out. InputError for a draft that reads no model, and for
    a text of one token."""
    draft: BaseDraft = pair.draft
    while isinstance(draft, WrappedDraft):
        draft = draft.draft
    if draft.uniform:
        raise InputError("the draft has no head or model whose guesses could be checked: name one with --draft")
    policy = Chain(length=1)
    beyond = policy.levels + 1
    check_length(len(ids), tokens + beyond, pair.target.max_positions, "the prompt")
    texts = write_continuations(
        pair.target, [ids], max_new_tokens=tokens, beyond=beyond, sampling=Sampling(0.0), eos=pair.target.eos
    )
    _, *rounds = replay_all(draft, policy, texts)
    counts = [count for step in rounds for count in step.count.tolist()]
    if not counts:
        raise InputError(
            "the target ends its text with the first token, so there is nothing to guess: give another prompt"
        )
    return FirstGuess(sum(count > 1 for count in counts), len(counts))
