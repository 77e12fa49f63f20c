"""Drafts are asked by their attributes: nothing outside of c2t.models names their classes."""

import ast
from pathlib import Path

import pytest

import c2t.models.loading.names  # noqa: F401 - every draft registers itself
from c2t.models.drafts.session import BaseDraft

ROOT = Path(__file__).parents[3]
OWN = ("c2t/models/", "c2t/viewer/", "c2t/cli/info.py")


def kinds(of: type = BaseDraft) -> set[str]:
    return {of.__name__} | {name for kind in of.__subclasses__() for name in kinds(kind)}


def asked(source: str) -> set[str]:
    """The classes that `isinstance` asks for."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) == 2)
    asking = (call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "isinstance")
    return {node.id for each in asking for node in ast.walk(each) if isinstance(node, ast.Name)}


def test_no_file_asks_for_the_class_of_a_draft() -> None:
    assert {"EagleDraft", "DraftLM", "NgramDraft", "ReweightedDraft", "UniformDraft"} < kinds()
    assert asked("isinstance(pair.draft, EagleDraft | DraftLM)") == {"EagleDraft", "DraftLM"}
    found = {}
    for path in sorted((ROOT / "c2t").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(OWN) and (classes := asked(path.read_text(encoding="utf-8")) & kinds()):
            found[name] = classes
    assert found == {}, "ask an attribute of BaseDraft instead"


@pytest.mark.parametrize(
    "name", ["wrappers/ngrams.py", "wrappers/reweighted.py", "drafts/session.py", "loading/registry.py"]
)
def test_what_serves_every_draft_knows_none(name: str) -> None:
    tree = ast.parse((ROOT / "c2t/models" / name).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported & kinds() <= {"BaseDraft", "WrappedDraft"}
