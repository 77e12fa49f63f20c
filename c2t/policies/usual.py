"""The policy of a pair where nobody says: what its provenance.json names, or what it has."""

from dataclasses import dataclass

from c2t.policies.spec import check_own
from c2t.storage import paths as checkpoints
from c2t.storage.checked import OPEN, from_json, read_file

UNLEARNED = "threshold:threshold=0.1"  # of a pair that names none and has no classifier


def default_policy(pair: str) -> str:
    """Return the policy of a text where nobody says, as the command line has it: what the pair names, C2T where it has
    a classifier on this machine, else UNLEARNED; this too for models that are no pair, whose name is ""."""
    if not pair or not checkpoints.is_name(pair):
        return UNLEARNED
    return usual_policy(pair) or ("c2t" if checkpoints.find(pair, checkpoints.CLASSIFIER) else UNLEARNED)


def usual_policy(pair: str) -> str | None:
    """Return how the trees of a pair are built where nobody says, as the command line has it (`c2t.policies.spec`);
    None where the pair does not say. InputError as `check_own`."""
    folder = checkpoints.find(pair, "") if checkpoints.is_name(pair) else None
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
