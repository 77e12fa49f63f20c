"""Freeze a small text corpus of three domains from Python sources that every machine has.

`code` is functions, `prose` the paragraphs of docstrings and comments, `doctest` the interactive examples."""

import ast
import doctest
import hashlib
import importlib.metadata
import io
import json
import lzma
import re
import sys
import sysconfig
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGES = ("networkx", "sympy", "numpy", "scipy", "scikit-learn", "mpmath", "rich", "click", "Jinja2", "Werkzeug")
PERMISSIVE = ("PSF", "MIT", "BSD", "Apache")
FOREIGN_FOLDERS = {"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "externals", "_vendor", "_lib"}
DOCUMENT_CHARS = (1300, 6000)  # a document is grown until the first; a unit longer than the second is left out
FILE_CHARS = 14_000  # per domain, so that no file dominates and enough files remain for the prompts
QUOTA = {"code": 1_350_000, "prose": 850_000, "doctest": 850_000}
SPLITS = (("bench_known", 12), ("harvest_known", 16), ("bench_heldout", 10), ("harvest_heldout", 10), ("train", 52))


@dataclass(frozen=True)
class Document:
    """Piece of one source file, of one domain."""

    domain: str
    source: str  # package/path
    split: str  # bench_known, harvest_known and train are trained on; *_heldout are not
    text: str

    @property
    def trained(self) -> bool:
        """True if the models are trained on it."""
        return not self.split.endswith("heldout")


@dataclass(frozen=True)
class Package:
    """Source of documents, with its licence."""

    name: str
    version: str
    licence: str
    root: Path
    notice: str  # the licence's text, which goes with the corpus


def packages() -> list[Package]:
    """Return the standard library and those of PACKAGES that are installed under a permissive licence."""
    version = ".".join(map(str, sys.version_info[:3]))
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    result = [Package("python", version, "PSF-2.0", stdlib, (stdlib / "LICENSE.txt").read_text())]
    installed = {d.metadata["Name"].lower(): d for d in importlib.metadata.distributions()}
    for name in PACKAGES:
        if (dist := installed.get(name.lower())) is None:
            continue
        classifiers = [c for c in dist.metadata.get_all("Classifier") or [] if c.startswith("License")]
        stated = dist.metadata.get("License-Expression") or " ".join(c.split("::")[-1].strip() for c in classifiers)
        folder = "sklearn" if name == "scikit-learn" else name.lower()
        if any(word in stated for word in PERMISSIVE):
            result.append(Package(name, dist.version, stated, Path(str(dist.locate_file(folder))), notice(dist)))
    return result


def notice(dist: importlib.metadata.Distribution) -> str:
    """Return the package's own licence: of the files with that name, the one nearest to the metadata's top."""
    files = [f for f in dist.files or [] if ".dist-info" in f.parts[0] and f.stem.upper() in ("LICENSE", "COPYING")]
    return min(files, key=lambda f: (len(f.parts), str(f))).read_text() if files else ""


def split_of(source: str) -> str:
    """Return the split of a source file, which depends on its name alone."""
    ticket = int(hashlib.sha256(source.encode()).hexdigest(), 16) % 100
    for split, share in SPLITS:
        if ticket < share:
            return split
        ticket -= share
    raise AssertionError("the shares sum to 100")


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text


def functions(tree: ast.Module, source: str) -> Iterator[str]:
    """Yield each function with its docstring cut to the first line; the rest belongs to `prose` and `doctest`."""
    lines = source.splitlines()
    scopes = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    for node in (child for scope in scopes for child in scope.body if isinstance(child, ast.FunctionDef)):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        body = lines[first - 1 : node.end_lineno]
        if doc := ast.get_docstring(node):
            statement = node.body[0]
            if statement.lineno == node.lineno or len(node.body) == 1:
                continue
            summary = " " * statement.col_offset + f'"""{doc.splitlines()[0].strip()}"""'
            body[statement.lineno - first : (statement.end_lineno or 0) - first + 1] = [summary]
        if len(body) >= 4:
            yield textwrap.dedent("\n".join(body)).rstrip()


def comments(source: str) -> Iterator[str]:
    """Yield runs of comment lines, each as one text."""
    run, last = [], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            if token.start[0] != last + 1 and run:
                yield "\n".join(run)
                run = []
            run.append(token.string.lstrip("#").strip())
            last = token.start[0]
    yield "\n".join(run)


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs of running text: no tables, no signatures, no examples."""
    for block in re.split(r"\n\s*\n", text):
        flat = " ".join(block.split())
        letters = sum(c.isalpha() or c.isspace() for c in flat)
        if len(flat) >= 80 and letters >= 0.86 * len(flat) and ">>>" not in flat and flat.isascii():
            yield flat


def examples(text: str) -> Iterator[str]:
    """Yield the interactive examples of one docstring, without the text between them."""
    try:
        parts = doctest.DocTestParser().get_examples(text)
    except ValueError:
        return
    shown = []
    for part in parts:
        first, *rest = part.source.rstrip("\n").split("\n")
        shown += [f">>> {first}", *(f"... {line}" for line in rest)]
        shown += [part.want.rstrip("\n")] if part.want.strip() else []
    if len(shown) >= 3:
        yield "\n".join(shown)


def units(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the (domain, text) pieces of one source file, in its order."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        remarks = list(comments(source))
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        return
    yield from (("code", text) for text in functions(tree, source))
    for doc in docstrings(tree):
        yield from (("prose", text) for text in paragraphs(doc))
        yield from (("doctest", text) for text in examples(doc))
    for remark in remarks:
        yield from (("prose", text) for text in paragraphs(remark))


def documents_of(path: Path, name: str, seen: set[str]) -> Iterator[Document]:
    """Yield pieces of one file, joined to documents long enough for a prompt and its continuation."""
    growing: dict[str, list[str]] = defaultdict(list)
    used: dict[str, int] = defaultdict(int)
    shortest, longest = DOCUMENT_CHARS
    for domain, text in units(path):
        key = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
        if key in seen or len(text) > longest or not text.isascii() or used[domain] > FILE_CHARS:
            continue
        seen.add(key)
        growing[domain].append(text)
        if sum(map(len, growing[domain])) >= shortest:
            joined = ("\n\n\n" if domain == "code" else "\n\n").join(growing.pop(domain))
            used[domain] += len(joined)
            yield Document(domain, name, split_of(name), joined)


def source_files(package: Package) -> Iterable[Path]:
    """Yield the source files of a package, without tests and vendored code."""
    for path in package.root.rglob("*.py"):
        inner = path.relative_to(package.root)
        if not FOREIGN_FOLDERS.intersection(inner.parts) and not inner.name.startswith("test"):
            yield path


def collect(sources: list[Package]) -> list[Document]:
    """Return documents from files of all packages, in an order fixed by their names' hash, until every domain's quota
    is full."""
    named = {f"{p.name}/{path.relative_to(p.root).as_posix()}": path for p in sources for path in source_files(p)}
    seen: set[str] = set()
    total: dict[str, int] = defaultdict(int)
    chosen = []
    for name in sorted(named, key=lambda name: hashlib.sha256(b"order" + name.encode()).digest()):
        for document in documents_of(named[name], name, seen):
            if total[document.domain] < QUOTA[document.domain]:
                total[document.domain] += len(document.text)
                chosen.append(document)
        if all(total[domain] >= quota for domain, quota in QUOTA.items()):
            break
    return chosen


def freeze(path: Path) -> list[Package]:
    """Write the corpus to one file. Sources differ between machines, so all later stages read only this file."""
    sources = packages()
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(asdict(document)) + "\n" for document in collect(sources))
    path.write_bytes(lzma.compress(lines.encode(), preset=9 | lzma.PRESET_EXTREME))
    used = [{"name": p.name, "version": p.version, "licence": p.licence} for p in sources]
    path.with_name("sources.json").write_text(json.dumps(used, indent=1) + "\n")
    notices = "\n".join(f"{'=' * 100}\n{p.name} {p.version} ({p.licence})\n\n{p.notice}" for p in sources)
    path.with_name("NOTICES.txt").write_text(f"The corpus holds excerpts of these packages.\n{notices}")
    return sources


def load(path: Path) -> list[Document]:
    """Return the documents of a corpus file."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [Document(**json.loads(line)) for line in file]
