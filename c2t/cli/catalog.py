"""Commands that list what other commands take by name: policies, drafts."""

import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

from c2t.cli import terminal
from c2t.models.loading.names import ENDINGS, TAPS
from c2t.models.loading.registry import DRAFTS
from c2t.policies import POLICIES
from c2t.policies.spec import INNER, settings_of, summary_of
from c2t.storage import paths as checkpoints
from c2t.storage.published import PUBLISHED

LEFT = 18  # columns of names
TITLES = {
    "ranked": "Ranked: the draft's most probable tokens.",
    "sampled": "Sampled from the draft.",
    "target-initialised": "Below tokens of the target; not exact.",
    "wrapper": "Around another policy, which comes last: budget:nodes=64,of=c2t:beta=0.1.",
}


def policies() -> None:
    """List the ways to build trees, with their settings.

    They are the POLICY of --policy: a name, and after a colon settings that are not the defaults.
    """
    for kind, title in TITLES.items():
        listed = {name: policy for name, policy in POLICIES.items() if _kind(policy) == kind}
        entries = [(name, summary_of(policy), ", ".join(settings_of(policy))) for name, policy in listed.items()]
        _show(title, entries)


def drafts() -> None:
    """List the names that drafts and pairs have.

    They are the PLACE of --draft, a name with endings, and the MODEL of --model.
    """
    _show("Drafts; c2t info PAIR says which a pair has.", [(name, kind.summary) for name, kind in DRAFTS.items()])
    endings = [(end.written(text), end.summary) for text, end in ENDINGS.items()]
    taps = f"{TAPS}2,18,33", "Let an EAGLE-3 head read these layers, where its config does not name them."
    _show("After a draft's name.", [*endings, taps])
    here = [name for name in checkpoints.names_with("target") if name not in PUBLISHED]
    _show(
        "Pairs of a target and a draft.", [("on this machine", ", ".join(here)), ("on the Hub", ", ".join(PUBLISHED))]
    )


def _kind(policy: Any) -> str:
    return "wrapper" if policy in INNER else policy.proposal


def _show(title: str, entries: Iterable[tuple[str, ...]]) -> None:
    """Print a title, and names with their texts."""
    width, lines = shutil.get_terminal_size().columns, [title]
    for name, *texts in entries:
        begin = f"  {name}".ljust(LEFT + 1) + " "
        for text in filter(None, texts):
            lines += textwrap.wrap(
                text, width, initial_indent=begin, subsequent_indent=" " * (LEFT + 2), break_on_hyphens=False
            )
            begin = " " * (LEFT + 2)
    terminal.say("\n".join([*lines, ""]))
