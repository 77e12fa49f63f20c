"""Tests where a reader looks for them, one for each policy, and a light import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import c2t
from c2t.policies import POLICIES

ROOT = Path(__file__).parents[1]
MODULES = sorted([*ROOT.glob("c2t/**/*.py"), *ROOT.glob("pipelines/**/*.py")])


def test_every_policy_has_a_test() -> None:
    policies = [path for path in MODULES if path.parent.name == "policies" and "def __call__" in path.read_text()]
    assert len(policies) > 10
    assert [path.stem for path in policies if not (ROOT / f"tests/policies/test_{path.name}").exists()] == []


def test_tests_mirror_the_library() -> None:
    """A folder of tests for each folder of the library, and no test of a module that is gone."""
    folders = {path.parent.relative_to(ROOT / "c2t") for path in MODULES if path.parts[len(ROOT.parts)] == "c2t"}
    assert [str(folder) for folder in folders if not any((ROOT / "tests" / folder).glob("test_*.py"))] == []
    for folder in folders - {Path()}:
        assert not list((ROOT / "tests").glob(f"test_{folder.name}.py")), f"tests of {folder} belong into its folder"


LOOSE = {  # the loop and what it is made of; everything else belongs into a folder
    *("__init__", "__main__", "errors", "tree", "protocols", "sampling", "verify"),
    *("decoding", "decoder", "batching", "classifier"),
}
SHOWING = ("c2t/viewer/", "c2t/cli/info")  # which show what each kind has


def test_the_files_directly_in_c2t_are_few() -> None:
    assert {path.stem for path in (ROOT / "c2t").glob("*.py")} == LOOSE


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.glob("c2t/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_nobody_asks_what_kind_a_policy_or_a_draft_is() -> None:
    """But its own package: of a policy c2t/policies, of a draft the file that defines it. Who needs to know asks for a
    property, which a new policy or draft can have as well."""
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in ROOT.glob("c2t/**/*.py")}
    home = {policy.__name__: "c2t/policies/" for policy in POLICIES.values()} | {"WrapperPolicy": "c2t/policies/"}
    for name, tree in trees.items():
        if name.startswith(("c2t/models/", "c2t/sessions/", "c2t/cuda_graphs/")):
            classes = (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
            home |= {kind: name for kind in classes if kind.endswith(("Draft", "Session", "DraftLM"))}
    home = {kind: place for kind, place in home.items() if kind != "TargetSession"}
    assert {"Plain", "Budget", "EagleDraft", "DraftLM", "NgramSession", "NoDraft"} <= set(home)
    asked = [
        f"{name}: {kind}"
        for name, tree in trees.items()
        if not name.startswith(SHOWING)
        for kind in kinds_asked_for(tree)
        if kind in home and not name.startswith(home[kind])
    ]
    assert asked == []


def kinds_asked_for(tree: ast.Module) -> list[str]:
    """Return the names of classes that isinstance is called with, or that a type is compared with."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found += [name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)]
        if isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            found += [name.id for name in ast.walk(node) if isinstance(name, ast.Name)]
    return found


def test_such_questions_are_found() -> None:
    source = (
        "isinstance(x.draft, (EagleDraft, c) | None); type(policy) is Plain; type(x) in (Budget, y); isinstance(x, int)"
    )
    assert {"EagleDraft", "Plain", "Budget", "int"} <= set(kinds_asked_for(ast.parse(source)))


@pytest.mark.slow
def test_import_of_c2t_needs_no_triton_and_loads_nothing_that_only_some_commands_use() -> None:
    code = """if True:
        import sys
        sys.modules["triton"] = None  # an import of it now fails; torch, which tries, goes on without
        import c2t
        print([name for name in ("lightning", "matplotlib", "wandb") if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_there_is_one_version() -> None:
    """That of the code, the citation, and the newest entry of the changelog."""
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert c2t.__version__ == cited == newest


def test_pipelines_do_not_import_the_command_line() -> None:
    """They have a door of their own: pipelines/terminal.py and pipelines/options.py. The demo alone shows commands."""
    modules = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("pipelines/**/*.py")}
    assert [name for name, text in modules.items() if "c2t.cli" in text] == ["pipelines/demo.py"]


def test_the_loop_is_one_screen_after_another() -> None:
    assert len((ROOT / "c2t" / "decoding.py").read_text().splitlines()) <= 220
