"""The places of checkpoints, by NAME, folder or Hub id, and how a new one is put into its place."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import platformdirs
from safetensors import SafetensorError

from c2t.errors import InputError, one_line, short_repr
from c2t.storage.atomic import check_replaceable, check_writable_name, new_folder, standing
from c2t.storage.checked import from_json, read_file
from c2t.storage.lock import check_utf8
from c2t.storage.published import PUBLISHED, PublishedPair

HOME = "C2T_HOME"  # the variable that names another folder with checkpoints/ and data/
CLASSIFIER = "classifier"
PROVENANCE = "provenance.json"  # next to a pair's parts
DEFAULT_PAIR = "smollm2"  # the default of every command and of load_pair
PACKAGED = ("smollm2",)  # pairs whose target comes in a package and is converted where it is loaded
# Files that a training leaves in a classifier's folder.
CLASSIFIER_FILES = {"config.json", "model.safetensors", "README.md", "metrics.csv", "hparams.yaml"}
LONGEST_NAME = 200  # bytes; file systems allow 255, and a scratch folder's name is longer by some
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def checkout() -> Path | None:
    """Return the folder of the checkout that c2t runs from, None if it was installed from a wheel."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").is_file() else None


def shipped() -> Path:
    """Return the folder to read `checkpoints/` and `data/` of the embedded pairs from: the checkout, else the data of
    the installed package, where nothing is ever written."""
    return checkout() or Path(__file__).resolve().parents[1] / "shipped"


def base_of(name: str) -> Path:
    """Return the folder that a pair is read from: $C2T_HOME where it has one of that name, which then is another pair
    than the embedded one, else `shipped`."""
    home = os.environ.get(HOME)
    return Path(home) if home and (Path(home) / "checkpoints" / name).is_dir() else shipped()


def root() -> Path:
    """Return the folder below which commands write `checkpoints/local/` and `data/`: $C2T_HOME, else the checkout,
    else the user's data folder (~/.local/share/c2t on Linux)."""
    home = os.environ.get(HOME)
    return Path(home) if home else checkout() or platformdirs.user_data_path("c2t")


def cache() -> Path:
    """Return the folder for files that can be computed again: $C2T_CACHE, else the user's cache folder (~/.cache/c2t on
    Linux)."""
    folder = os.environ.get("C2T_CACHE")
    return Path(folder) if folder else platformdirs.user_cache_path("c2t")


def state() -> Path:
    """Return the folder for what this user alone may read: the user's state folder (~/.local/state/c2t on Linux)."""
    return platformdirs.user_state_path("c2t")


def prompts_of(name: str, purpose: Literal["harvest", "bench"]) -> list[Path]:
    """Return the prompt files that come with a pair; none for a pair that brings none."""
    folder = base_of(name) / "data" / "prompts" / name / ("harvest" if purpose == "harvest" else "")
    return sorted(folder.glob("*.jsonl")) if name else []


def _folders(name: str) -> tuple[Path, Path]:
    """Return the folder of a pair, and that of what was made for it on this machine, which git ignores; parts are
    looked up in this order."""
    return base_of(name) / "checkpoints" / name, root() / "checkpoints" / "local" / name


def searched() -> str:
    """Return the end of an error line that names where names were looked up; "" in a checkout."""
    if os.environ.get(HOME):
        return f"; searched in ${HOME} = {root()}, and among the pairs that come with c2t"
    if checkout():
        return ""
    return f"; searched in the installed package and {root()}: set ${HOME} to a checkout, which has more drafts"


def usable(path: str | Path) -> Path:
    """Return a path that this machine can look up, whether or not something is there. Raises InputError for an empty
    one, for names that are too long or not UTF-8, for links that lead to themselves, and for NUL."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{short_repr(path)} is no path: give a text or a Path")
    if not str(path):
        raise InputError("an empty path: give a file or a folder (. is the current one)")
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # what needs it says so
    except (OSError, ValueError) as error:
        shown = repr(str(path)) if len(str(path)) < 80 else f"{str(path)[:60]!r} ... ({len(str(path))} characters)"
        raise InputError(f"{shown} cannot be a path: {one_line(error)}") from error
    check_utf8(Path(str(path) if is_name(path) else os.path.realpath(path)))  # names are looked up in other folders
    return Path(path)


def is_name(reference: str | Path) -> bool:
    """Return True for a NAME: a string without a path separator. A `Path` is always a path."""
    return isinstance(reference, str) and not any(sep in reference for sep in ("/", "\\", os.sep))


def check_name(name: str, source: str = "") -> str:
    """Return a name that may become a part of a path; InputError, with the file it comes from, for another, such as
    "../x", "/x", ".", a name with control characters or one that is too long for a file system."""
    safe = isinstance(name, str) and is_name(name) and not name.startswith(".") and name.isprintable()
    if not name or not safe or len(os.fsencode(name)) > LONGEST_NAME:
        shown = name if len(str(name)) <= LONGEST_NAME else f"{str(name)[:40]}..."
        where = f"{source}: " if source else ""
        raise InputError(f"{where}{shown!r} cannot be the name of a folder: choose the place yourself, with --out")
    return name


def name_of(source: str) -> str:
    """Return a name for the folder or Hub id `source`, which `check_name` takes: its last part without what no name
    may have."""
    last = Path(os.path.abspath(source)).name  # of "." too
    name = "".join(character if character.isprintable() else "_" for character in last).lstrip(".")
    return name.encode()[:LONGEST_NAME].decode(errors="ignore") or "target"


def names_with(part: str) -> list[str]:
    """Return the names that `resolve` accepts for `part`."""
    folders = root() / "checkpoints", root() / "checkpoints" / "local", shipped() / "checkpoints"
    local = {name for folder in folders for path in folder.glob(f"*/{part}") if find(name := path.parent.name, part)}
    packaged = set(PACKAGED) if part == "target" else set()
    return sorted(local | packaged | (set(PUBLISHED) if part in PublishedPair._fields else set()))


def find(name: str, part: str) -> Path | None:
    """Return the folder of a NAME's `part` on this machine, None if there is none."""
    folders = (standing(folder / part) for folder in _folders(name))
    return next((folder for folder in folders if folder.is_dir()), None)


def resolve(reference: str | Path, part: str, others: Iterable[str] = ()) -> Path | str:
    """Return the place of `part` ("target", "draft", "classifier", ...) of `reference`: a folder (Path) or a Hub id
    (str).

    others: further names that the caller knows, for the message. Raises InputError for a name or folder that is not
    there.
    """
    listed = ", ".join([*others, *names_with(part)]) or "none yet"
    if isinstance(reference, str) and not reference:
        raise InputError(f"the name of the {part} is empty: give one of {listed}, a folder or a Hub id")
    usable(reference)
    if is_name(reference):
        return _resolve_name(str(reference), part, listed)
    path = standing(Path(reference))
    if path.is_dir():
        return _of_files(path)
    if isinstance(reference, str) and HUB_ID.fullmatch(reference):
        return reference
    raise InputError(f"no such folder: {reference}")


def _of_files(folder: Path) -> Path:
    """Return a folder; InputError if it holds a pipe or a device, which a library would wait for or read without
    end."""
    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(f"{path} is no regular file: put a copy of the file there")
    return folder


def _resolve_name(name: str, part: str, listed: str) -> Path | str:
    if name.startswith("."):  # "." and ".." would leave the folder of the name
        raise InputError(f"{name!r} is not a name: give one of {listed}, or a path with a separator")
    if folder := find(name, part):
        return _of_files(folder)
    if name in PUBLISHED and part in ("target", "draft"):
        return getattr(PUBLISHED[name], part)
    if part == CLASSIFIER and (name in PUBLISHED or any(folder.is_dir() for folder in _folders(name))):
        raise InputError(f"{name} has no classifier yet; make it with: {recipe(name)}")
    folder = f"; the folder of that name is ./{name}" * Path(name).is_dir()
    hint = "; c2t draft train makes one for another model" * (part == CLASSIFIER)
    raise InputError(f"no {part} is called {name!r}; known: {listed}{searched()}{hint}{folder}")


def recipe(name: str, models: str = "") -> str:
    """Return the commands that make the classifier of a pair, at the place where its name is looked up. models: the
    options that load it, where its name does not."""
    rows, out = _short(harvest_of(name)), _short(local_of(name, CLASSIFIER))
    prompts = "" if prompts_of(name, "harvest") else "--prompts FILE "
    return f"c2t harvest {models or f'--pair {name}'} {prompts}--out {rows} && c2t train {rows} --out {out}"


def harvest_of(name: str) -> Path:
    """Return the default folder of a pair's harvest."""
    return root() / "data" / "harvest" / check_name(name)


def local_of(name: str, part: str) -> Path:
    """Return the default folder of what is made for a pair on this machine. InputError as `check_name`."""
    return root() / "checkpoints" / "local" / check_name(name) / part


def check_out(out: Path, overwrite: bool, what: str, is_one: Callable[[Path], bool], files: Collection[str]) -> None:
    """Raise InputError unless `out` is absent, an empty folder or, with `overwrite`, a folder of this kind and nothing
    else.

    what: the kind, in a word or two. is_one: returns True for a folder of it. files: names that it may hold.
    """
    check_replaceable(out)
    check_writable_name(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder")
    if out.is_dir() and any(out.iterdir()):
        if not is_one(out):
            raise InputError(f"{out} holds something else than a {what}: choose another folder with --out")
        if not overwrite:
            raise InputError(f"{out} holds a {what}: replace it with --overwrite, or choose another --out")
        if foreign := sorted(path.name for path in out.iterdir() if path.name not in files):
            raise InputError(f"{out} holds a file that is no {what}'s ({foreign[0]}): choose another folder")


def check_classifier_out(out: Path, overwrite: bool) -> None:
    """Raise InputError unless a classifier may be written to `out`; see `check_out`."""
    check_out(out, overwrite, "classifier", is_classifier, CLASSIFIER_FILES)


def is_classifier(folder: Path) -> bool:
    """Return True if the folder's config.json is that of a c2t classifier; a target's or a head's lacks the entry."""
    try:
        config = from_json(dict[str, Any], read_file(folder / "config.json"), folder)
    except InputError:
        return False
    return "negatives_kept" in config


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `out` at the end, in one step. If writing fails it raises InputError and
    leaves `out` unchanged."""
    try:
        with new_folder(out) as new:
            yield new
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {out}: {one_line(error)}") from error


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
