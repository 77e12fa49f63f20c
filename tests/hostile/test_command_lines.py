"""Hostile command lines, in one process: each ends at once with its line and exit code, never with a traceback.

In a line {loop} is a link to itself, {pipe} a pipe that nobody writes to, {folder} an empty folder, {long} a name of
300 letters, {garbage} a file of bytes that are no text.
"""

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from c2t.classifier import TreeClassifier
from c2t.cli.app import app
from tests.harvests import make_harvest

HUGE = "1" + "0" * 18


def run(*words: str | Path, exit_code: int = 2) -> str:
    """Run a command and return its output, which for exit code 2 is one line on stderr."""
    done = CliRunner().invoke(app, [str(word) for word in words], input="y\n" * 9)
    assert done.exit_code == exit_code, (done.output, done.exception)
    assert "Traceback" not in done.output
    if exit_code != 2:
        return done.output
    [line] = done.stderr.splitlines()
    assert line.startswith("c2t: ")
    assert done.stdout == ""
    return line


@pytest.fixture
def tmp(small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_HOME", str(small_home))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "garbage").write_bytes(b"\xff\xfe{[" * 100)
    return tmp_path


PLACES = {  # option that names a place -> a command that has it
    "--pair": "generate a",
    "--target": "generate a --draft {folder}",
    "--draft": "generate a --pair tiny",
    "--classifier": "generate a --pair tiny",
    "--prompts": "bench --pair tiny --policies plain",
    "--out": "harvest --pair tiny --limit 1 --max-new-tokens 2",
    "--merge": "harvest",
    "--texts": "harvest --pair tiny",
    "--json": "generate a --pair tiny",
    "--from": "finetune",
    "": "info",
    " ": "train",
    "  ": "plot",
}


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "empty path|is empty"),
        ("{long}", "File name too long"),
        ("./{long}/x", "File name too long"),
        ("a\0b", "null byte"),
        ("{loop}", "symbolic links"),
        ("{loop}/x", "symbolic links"),
        ("{pipe}", "."),
        ("/dev/zero", "."),
        ("{garbage}", "."),
        ("{garbage}/x", "."),
    ],
)
@pytest.mark.parametrize("option", PLACES)
def test_options_that_name_a_place(tmp: Path, option: str, place: str, message: str) -> None:
    if option == "--json" and place in ("/dev/zero", "{garbage}"):
        return  # which take a line
    names = {name: tmp / name for name in ("loop", "pipe", "folder", "garbage")} | {"long": "a" * 300}
    words = PLACES[option].format(**names).split()
    line = run(*words, *[option] * bool(option.strip()), place.format(**names))
    assert re.search(message, line), line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("generate a --policy ''", "empty; leave the option out"),
        ("generate a --device ''", "empty; leave the option out"),
        ("generate a --device-map ''", "empty; leave the option out"),
        ("generate a --dtype ''", "'--dtype'"),
        ("generate a --rule ''", "'--rule'"),
        ("bench --policies ''", "no policy is called ''"),
        ("sweep --grid ''", "no policy is called ''"),
        ("sweep --taus ''", "give numbers separated by commas"),
        ("sweep --taus nan", "give numbers separated by commas"),
        ("tune --policies ''", "no policy is called ''"),
        ("train --logger '' {harvest}", "unknown logger ''"),
        ("train --features '' {harvest}", "unknown features"),
        ("train --model '' {harvest}", "no model is called ''"),
        ("generate a --policy eagle2:levels=1000000", "at most 256 fit"),
        ("bench --policies sequoia:N=1000000,acceptance=0.5", "at most 8,192 fit"),
        ("bench --policies mcsd:config=1000x1000x1000", "at most 8,192 fit"),
        (
            "sweep --grid eagle2:N=" + "|".join(["1"] * 100) + ",K=" + "|".join(["1"] * 100) + ",levels=1|2",
            "20,000 points; at most 10,000 fit",
        ),
        ("sweep --grid eagle2:" + ",".join(f"K={'|'.join('1' * 100)}" for _ in range(99)), "more than 10.15 points"),
        ("train {harvest} --hidden 1000000000000", "hidden = 1000000000000 must be at most 65536"),
        ("train {harvest} --hidden 65536 --model mcsd-hidden", "4,295,.* weights; at most 16,777,216"),
        (f"train {{harvest}} --batch-size {HUGE}", "must be at most 16777216"),
        (f"train {{harvest}} --negatives {HUGE}", "must be at most 1048576"),
        (f"train {{harvest}} --seed {HUGE}0", "seed"),
        (f"train {{harvest}} --lr {HUGE}e300", "lr"),
        (f"generate a --policy plain --max-new-tokens {HUGE}", "exceed the target's 768 positions"),
        (f"generate a --policy plain --temperature {HUGE}e300", "temperature"),
        (f"harvest --k {HUGE}", "at most 256 children"),
        (f"harvest --levels {HUGE}", "256 levels"),
        ("harvest --k 60 --levels 10", "8,191 nodes"),
        ("harvest --shard ''", "empty; leave the option out"),
        (f"harvest --pair tiny --shard 0/{HUGE}", "write i/n, counted from 0"),
        ("harvest --ray ''", "empty; leave the option out"),
        ("harvest --ray local --workers 0", "workers = 0: use at least 1"),
        ("harvest --ray local --shard 0/2", "leave --shard out"),
        (f"harvest --max-new-tokens {HUGE}", "no room"),
        (f"tune --policies chain --batch {HUGE}", "do not fill a batch"),
        ("tune --minutes nan", "must be more than 0"),
        (f"tune --policies chain --max-new-tokens {HUGE}", "no room"),
        ("generate a --draft +ngrams=1e400", "from 0.001"),
        ("generate a --pair '[/x]'", r"no such folder: \[/x\]"),
        ("generate a --pair '[red]x'", r"no target is called '\[red\]x'"),
        ("generate a --policy '[/x]'", r"no policy is called '\[/x\]'"),
        ("generate a --pair \x1b]0;hacked\x07", r"no target is called '\\x1b\]0;hacked\\x07'"),
        ("generate a --pair one\ntwo", r"no target is called 'one\\ntwo'"),
        ("info '[/x]'", r"no such folder: \[/x\]"),
        ("info \udcff/x", r"\\udcff/x is not UTF-8: give a path that is"),
    ],
)
def test_values(tmp: Path, words: str, message: str) -> None:
    harvest = make_harvest(tmp / "harvest", prompts=3, trees_each=1, K=3, levels=3) if "{harvest}" in words else tmp
    split = [word.strip("'") if word != "''" else "" for word in re.split(" ", words.format(harvest=harvest))]
    more = [] if {"--pair", "train", "info"} & set(split) else ["--pair", "tiny"]
    assert re.search(message, run(*split, *more)), words


# What files can hold


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


DEEP = "[" * 100_000


@pytest.mark.parametrize("part", ["target", "draft"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 10**12),
        ("hidden_size", True),
        ("hidden_size", "32"),
        ("intermediate_size", 10**12),
        ("intermediate_size", 2**24),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 1000),
        ("num_attention_heads", 0),
        ("num_attention_heads", 7),
        ("num_attention_heads", [4]),
        ("vocab_size", 10**12),
        ("max_position_embeddings", 10**30),
        ("hidden_act", "no_such_function"),
        ("rms_norm_eps", "small"),
    ],
)
def test_configs_of_models(home: Path, part: str, name: str, value: object) -> None:
    edit(home / "checkpoints" / "tiny" / part / "config.json", **{name: value})
    assert str(home / "checkpoints" / "tiny" / part) in run("generate", "a", "--pair", "tiny", "--policy", "eagle2:N=4")


@pytest.mark.parametrize("text", [b"", b"[]", b"3", DEEP.encode(), b'{"a": ' * 1000, b"\xff\xfe", b"null", b"{"])
@pytest.mark.parametrize(
    "file",
    [
        "target/config.json",
        "target/tokenizer_config.json",
        "target/tokenizer.json",
        "draft/config.json",
        "classifier/config.json",
    ],
)
def test_documents_that_are_none(home: Path, file: str, text: bytes) -> None:
    TreeClassifier().save_pretrained(home / "checkpoints" / "tiny" / "classifier")
    place = home / "checkpoints" / "tiny" / file
    place.write_bytes(text)
    assert str(place.parent) in run("generate", "a", "--pair", "tiny")


@pytest.mark.parametrize(
    "values",
    [
        {"layers": 10**7},
        {"hidden": 10**12},
        {"hidden": 60_000, "layers": 64},
        {"hidden": True},
        {"features": ["hidden"], "widths": {"hidden": 10**12}},
        {"M": "x"},
        {"beta": "0.5"},
        {"schema_version": 99},
    ],
)
def test_configs_of_classifiers(home: Path, tmp_path: Path, values: dict) -> None:
    TreeClassifier().save_pretrained(tmp_path / "classifier")
    edit(tmp_path / "classifier" / "config.json", **values)
    for words in (["generate", "a", "--pair", "tiny", "--classifier"], ["info"], ["finetune", "--from"]):
        assert re.search(r"config\.json|weights; at most", run(*words, tmp_path / "classifier"))


@pytest.mark.parametrize("values", [{"M": "x"}, {"M": True}, {"K": 1.5}, {"levels": "11"}, {"pair": 3}])
def test_a_manifest_of_other_types_is_not_trained_on(tmp: Path, values: dict) -> None:
    rows = make_harvest(tmp / "rows", prompts=3, trees_each=1, K=3, levels=3)
    manifest = json.loads((rows / "manifest.json").read_text())
    edit(rows / "manifest.json", provenance=manifest["provenance"] | values)
    for words in (["train", rows, "--out", tmp / "out"], ["info", rows]):
        assert f"provenance.{next(iter(values))} = " in run(*words)
    assert not (tmp / "out").exists()


def test_brackets_in_names_are_no_markup(home: Path, tmp_path: Path) -> None:
    place = tmp_path / "h[v2]" / "[red]x"
    TreeClassifier().save_pretrained(place)
    edit(place / "config.json", pair="[/x]\x1b[31m", metrics={"[bold]": 1.0}, sha256=None)
    said = run("info", place, exit_code=0)
    for words in (str(place), r"[/x]\x1b[31m", "metrics.[bold]"):
        assert words in said
    assert "\x1b" not in said


@pytest.mark.parametrize("part", ["target", "draft", "classifier"])
def test_pipes_in_the_place_of_weights(home: Path, part: str) -> None:
    """Which would be waited for."""
    TreeClassifier().save_pretrained(home / "checkpoints" / "tiny" / "classifier")
    file = home / "checkpoints" / "tiny" / part / "model.safetensors"
    file.unlink()
    os.mkfifo(file)
    for words in (["generate", "a", "--pair", "tiny"], ["info", file.parent]):
        assert str(file) in run(*words)


def test_a_cache_that_is_full_changes_no_result(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds what can be computed again: a warning says that nothing is kept, and the figures are the same."""
    words = [
        "bench",
        "--pair",
        "tiny",
        "--limit",
        "2",
        "--timed",
        "0",
        "--max-new-tokens",
        "4",
        "--policies",
        "eagle2:N=8",
    ]
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    kept = CliRunner().invoke(app, [*words, "--json", "-"])
    (tmp_path / "full").write_text("a file, in which no folder can be made")
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "full"))
    full = CliRunner().invoke(app, [*words, "--json", "-"])
    assert (kept.exit_code, full.exit_code, kept.stderr) == (0, 0, "")
    assert all(re.match("warning: .* stores no texts .*set C2T_CACHE", line) for line in full.stderr.splitlines())
    assert full.stderr
    one, other = (json.loads(done.stdout.splitlines()[-1])["figures"] for done in (kept, full))
    assert one == other
    assert kept.stdout.splitlines()[:-1] == full.stdout.splitlines()[:-1]


def test_a_full_output_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def full(text: str, err: bool = False, **_: object) -> None:
        if not err:
            raise OSError(28, "No space left on device")
        said.append(text)

    monkeypatch.setattr("typer.echo", full)
    done = CliRunner().invoke(app, ["generate", "a", "--pair", "tiny", "--policy", "plain", "--max-new-tokens", "2"])
    assert (done.exit_code, said) == (2, ["c2t: No space left on device"])
