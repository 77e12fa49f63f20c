"""A folder for the Hub that makes `model.generate(..., custom_generate="user/repo")` decode with trees."""

import textwrap
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import ModelCard, ModelCardData

import c2t
from c2t.errors import InputError, installed_by
from c2t.hf.hub import packed
from c2t.hf.tree_decoding import TreeDecoding
from c2t.models.drafts.uniform import LOOKUP
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.policies.spec import describe
from c2t.protocols import Policy
from c2t.storage import paths as checkpoints
from c2t.storage.published import PUBLISHED

GENERATE = Path("custom_generate") / "generate.py"
FILES = (GENERATE.parts[0], "README.md")  # names in the folder
LARGEST = 2**20  # characters of a packed classifier; the paper's has some 4000


def export(out: Path, draft: str, policy: Policy, target: str, overwrite: bool = False) -> str:
    """Write the folder; return the draft that it names.

    draft: a Hub id, or the name of a pair whose draft comes with c2t or is published. target: Hub id of the model that
    the card names. InputError for drafts that others do not have, policies that do not decode exactly, and for a folder
    that is in use.
    """
    _check_out(out, overwrite)
    draft = shared_draft(draft)
    TreeDecoding(draft, policy=policy)  # which refuses what will not decode
    inner = getattr(policy, "policy", policy)  # of a budget
    if hasattr(inner, "accuracies"):
        raise InputError("a static tree reads its accuracies from a file of this machine: export another policy")
    classifier = getattr(inner, "classifier", None)
    literal = "None" if classifier is None else _literal(packed(classifier))
    if len(literal) > LARGEST:
        raise InputError(f"a classifier of {len(literal)} characters is too large for a file; take one of C2T's")
    values = {"draft": draft, "policy": describe(policy)}
    code = jinja2.Template(_template("generate.py.jinja"), keep_trailing_newline=True).render(
        classifier=literal, **{name: repr(value) for name, value in values.items()}
    )
    data = ModelCardData(library_name="transformers", tags=["custom_generate", "speculative-decoding", "c2t"])
    card = ModelCard.from_template(
        data,
        template_str=_template("hub_card.md"),
        target=target,
        repo=f"user/{out.resolve().name}",
        install=installed_by(),
        **values,
    )
    with checkpoints.replacing(out) as new:
        _check_out(out, overwrite)  # again: another export may have ended since
        (new / GENERATE).parent.mkdir()
        (new / GENERATE).write_text(code, encoding="utf-8")
        (new / GENERATE).with_name("requirements.txt").write_text(f"c2t>={c2t.__version__}\n", encoding="utf-8")
        (new / "README.md").write_text(str(card), encoding="utf-8")
    return draft


def _check_out(out: Path, overwrite: bool) -> None:
    checkpoints.check_out(out, overwrite, "Hub folder", lambda folder: (folder / GENERATE).is_file(), FILES)


def shared_draft(draft: str) -> str:
    """Return a draft's reference for other machines; InputError for one that only this machine has."""
    if draft in PUBLISHED:
        return PUBLISHED[draft].draft
    if draft.partition(NGRAMS)[0] == LOOKUP:
        return draft
    its_own = checkpoints.is_name(draft) and checkpoints.base_of(draft) == checkpoints.shipped()
    with_c2t = its_own and (checkpoints.shipped() / "checkpoints" / draft / "draft").is_dir()
    if with_c2t or (checkpoints.HUB_ID.fullmatch(draft) and not Path(draft).exists()):
        return draft
    checkpoints.resolve(draft, "draft")  # which says what is wrong with one that is nowhere
    raise InputError(f"others do not have the draft {draft}: put it on the Hub, and give its id")


def _literal(files: tuple[str, ...]) -> str:
    """Return Python's text for a tuple of long texts, in lines."""
    texts = ("\n".join(f'        "{line}"' for line in textwrap.wrap(text, 100)) for text in files)
    return "(\n" + "".join(f"    (\n{text}\n    ),\n" for text in texts) + ")"


def _template(name: str) -> Any:
    return files(c2t.hf).joinpath(name).read_text(encoding="utf-8")
