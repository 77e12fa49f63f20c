"""Decoding needs none of the extras, and a command that needs one says which."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKED = ("lightning", "pytorch_lightning", "pyarrow", "matplotlib", "sklearn", "scipy", "wandb", "tensorboard")
BLOCKED += ("fastapi", "prometheus_client", "uvicorn")
CODE = f"""if True:
    import json, sys
    sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))  # an import of None fails
    from typer.testing import CliRunner
    import c2t
    classifier = c2t.TreeClassifier.from_pretrained("{ROOT}/checkpoints/tiny/classifier")
    decoder = c2t.SpeculativeDecoder.from_pretrained("tiny", policy=c2t.C2T(classifier))
    text = decoder.generate("def add(a, b):", max_new_tokens=4).text
    from c2t.cli.app import app
    said = []
    for command in json.loads(sys.argv[2]):
        done = CliRunner().invoke(app, command.split())
        said.append([command, done.exit_code, done.output, repr(done.exception)])
    print(json.dumps([text, said]))
"""
RUN = (
    "generate def --pair tiny --policy eagle2 --max-new-tokens 4",
    "bench --pair tiny --policies plain,eagle2 --limit 1 --timed 1 --max-new-tokens 4",
    "info tiny",
)
NEED = {
    "train tiny": "train",
    "finetune --from tiny": "train",
    "harvest --pair tiny --limit 1": "train",
    "sweep --pair tiny --limit 1": "study",
    "plot": "study",
    "serve --pair tiny": "serve",
}


@pytest.fixture(scope="module")
def without_extras(small_home: Path) -> tuple[str, list]:
    """What a process without any extra decodes, and what each command answers."""
    arguments = json.dumps(BLOCKED), json.dumps([*RUN, *NEED])
    environment = {**os.environ, "C2T_HOME": str(small_home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(command, env=environment, cwd=small_home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_decoding_needs_no_extra(without_extras: tuple[str, list]) -> None:
    text, commands = without_extras
    assert isinstance(text, str)
    for command, code, output, exception in commands[: len(RUN)]:
        assert code == 0, (command, output, exception)
        assert output.strip()


@pytest.mark.slow
def test_a_command_names_the_extra_that_it_needs(without_extras: tuple[str, list]) -> None:
    for command, code, output, exception in without_extras[1][len(RUN) :]:
        name, extra = command.split()[0], NEED[command]
        assert code == 2, (command, output, exception)
        said = rf"c2t: c2t {name} needs \w+: pip install '\.\[{extra}\]' in a clone of c2t\n"
        assert re.fullmatch(said, output), output
