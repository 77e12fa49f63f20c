"""The ending `+candidates=K` of a head whose bias depends on the path, DSpark's or Domino's.

Without it every level of a tree reads all rows of `c2t.models.drafts.markov.SequentialHead.out`, 78 MB in bf16 for
Qwen3's tokens and a rank of 256. With it the K tokens of a depth that are most probable without a bias get theirs, and
all others have probability 0. Verification takes just that for the draft's distribution: the text is exact for any K.
"""

from dataclasses import dataclass
from pathlib import Path

from c2t.errors import InputError
from c2t.models.drafts.session import BaseDraft, DraftSession, WrappedDraft
from c2t.models.loading.registry import ENDINGS, PATH, Ending
from c2t.models.target.target import Target

CANDIDATES = "+candidates"  # after a draft's name, with "=K"


@dataclass(frozen=True)
class LimitedDraft(WrappedDraft):
    """Draft whose candidates are K."""

    candidates: int

    @property
    def mark(self) -> str:
        return str(self.candidates)

    def session(self) -> DraftSession:
        """Return a new session for one generation."""
        return self.draft.session()


def check_candidates(k: float) -> None:
    """Raise InputError for a number of candidates that is not whole, or below 1."""
    if not (k >= 1 and k.is_integer()):
        raise InputError(f"{CANDIDATES}={k:g}: the number of candidates must be whole and at least 1")


def with_candidates(draft: BaseDraft, k: float, folder: Path, target: Target) -> LimitedDraft:
    """Return the draft with K candidates, or all tokens if it has fewer; InputError for one without a bias."""
    limited = draft.among(int(k))
    if limited is None:
        raise InputError(
            f"{CANDIDATES} is for DSpark's and Domino's heads, which have a bias of the path; leave it out"
        )
    return LimitedDraft(limited, int(k))


SUMMARY = "Draft only the K tokens of a depth that are most probable before a DSpark or Domino head's bias."
ENDINGS[CANDIDATES] = Ending(
    with_candidates, PATH, number="K", needs_number=True, check=check_candidates, summary=SUMMARY
)
