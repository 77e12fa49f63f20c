"""A test per policy, and a light import."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_policy_has_a_test() -> None:
    policies = [path for path in ROOT.glob("c2t/policies/*.py") if "def __call__" in path.read_text()]
    assert [path.stem for path in policies if not (ROOT / f"tests/policies/test_{path.name}").exists()] == []


def test_import_of_c2t_needs_no_triton_and_loads_nothing_that_only_some_commands_use() -> None:
    code = """if True:
        import sys
        sys.modules["triton"] = None  # an import of it now fails; torch, which tries, goes on without
        import c2t
        print([name for name in ("lightning", "matplotlib", "wandb") if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_pipelines_do_not_import_the_command_line() -> None:
    """They have a door of their own: pipelines/terminal.py and pipelines/options.py."""
    modules = ROOT.glob("pipelines/**/*.py")
    assert [str(path.relative_to(ROOT)) for path in modules if "c2t.cli" in path.read_text()] == []
