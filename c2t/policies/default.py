"""The default policy of a pair: the one that its provenance.json names, or one for which it has the files."""

from dataclasses import dataclass
from pathlib import Path

from c2t.policies.spec import check_own
from c2t.storage import paths as checkpoints
from c2t.storage.checked import OPEN, from_json, read_file

FALLBACK = "threshold:threshold=0.1"  # policy of a pair that names none and has no classifier


def default_policy(pair: str) -> str:
    """Return the default policy of a text, as the command line writes it: the pair's own, C2T where the pair has a
    classifier on this machine, else FALLBACK. pair: "" for models that are no pair, which gives FALLBACK."""
    if not pair or not checkpoints.is_name(pair):
        return FALLBACK
    return policy_of_pair(pair) or ("c2t" if checkpoints.find(pair, checkpoints.CLASSIFIER) else FALLBACK)


def policy_of_pair(pair: str) -> str | None:
    """Return the policy that a pair names, as `policy_of_folder`; None if it names none."""
    folder = checkpoints.find(pair, "") if checkpoints.is_name(pair) else None
    return policy_of_folder(folder) if folder else None


def policy_of_folder(folder: Path | None) -> str | None:
    """Return the policy that the provenance.json of a folder of drafts names, as the command line writes it
    (`c2t.policies.spec`); None if it names none, and for no folder. InputError as `check_own`."""
    file = folder / checkpoints.PROVENANCE if folder else None
    if file is None or not file.is_file():
        return None
    spec = from_json(_Provenance, read_file(file), file).policy
    if spec is not None:
        check_own(spec, file)
    return spec


@dataclass(frozen=True)
class _Provenance:
    """Part of a pair's provenance.json that is read here."""

    __pydantic_config__ = OPEN
    policy: str | None = None
