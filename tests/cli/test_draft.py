"""`c2t draft train`: the command trains a head that other commands find, and wrong input is one line."""

import json
import shlex
import shutil
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from typer.testing import CliRunner

from c2t.cli import shared
from c2t.cli.app import app
from c2t.cli.draft import default_out
from c2t.cli.options import Models
from c2t.drafting.train import DraftTraining, Progress
from c2t.models.loading import load, own_model
from c2t.models.loading.fingerprint import weights_fingerprint
from c2t.models.loading.trained import in_cache
from tests.small_pair import TURNS, write_prompts


def c2t(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def target(home: Path) -> Path:
    return home / "checkpoints" / "tiny" / "target"


@pytest.mark.slow
def test_a_trained_head_is_found_by_generate(target: Path, tmp_path: Path) -> None:
    prompts, figures = write_prompts(tmp_path / "prompts.jsonl", TURNS), tmp_path / "figures.jsonl"
    words = ["--model", target, "--prompts", prompts, "--minutes", "0.4", "--dtype", "float32", "--json", figures]
    done = c2t("draft", "train", *words)
    assert done.exit_code == 0, done.output
    assert "agrees with the target on" in done.output
    assert "no classifier was trained: 0 questions are too few, it needs 16" in done.output
    assert f"use it with: c2t generate --model {target}" in done.output
    line = json.loads(figures.read_text())
    assert line["figures"]["steps"] > 0 if "figures" in line else line["steps"] > 0
    about = json.loads((target / "c2t" / "provenance.json").read_text())
    assert about["target_weights"]
    assert about["policy"]
    answer = c2t("generate", "--model", target, "--dtype", "float32", "--max-new-tokens", "8", TURNS[0])
    assert answer.exit_code == 0, answer.output
    assert f"draft: {target / 'c2t' / 'draft'}" in answer.output


def test_a_new_head_is_tried_with_the_target_as_it_was_loaded(
    target: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only once at a time: a large one may not fit into memory twice."""
    head, real, asked, targets = home / "checkpoints" / "tiny" / "draft", shared.load, [], []

    def alone(models: Models) -> load.Pair:
        assert not any(target() for target in targets)
        pair = real(models)
        asked.append(models)
        targets.append(weakref.ref(pair.target.model))
        return pair

    monkeypatch.setattr(shared, "load", alone)
    monkeypatch.setattr("c2t.drafting.train.train", lambda *_: DraftTraining(head, Progress(), 0, [], 0.0))
    monkeypatch.setattr("c2t.cli.draft.classifier_for", lambda *_: None)
    monkeypatch.setattr("c2t.cli.draft.tuned", lambda *_: SimpleNamespace(summary="a chain"))
    prompts = write_prompts(tmp_path / "prompts.jsonl", TURNS)
    done = c2t("draft", "train", "--model", target, "--prompts", prompts, "--dtype", "float32", "--trust-remote-code")
    assert done.exit_code == 0, done.output
    assert asked == [asked[0]._replace(draft="lookup"), asked[0]._replace(draft=str(head))]
    assert (asked[0].dtype, asked[0].trust_remote_code) == ("float32", True)
    assert f"--draft {head} " in done.output  # which is not the one that is found by the target's weights


def test_the_head_of_a_hub_id_is_in_the_cache_by_its_weights(
    target: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, commit = tmp_path / "hub" / "models--my--llama", "0" * 40
    shutil.copytree(target, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    folder = default_out("my/llama")
    assert folder == in_cache(target)
    shutil.copytree(home / "checkpoints" / "tiny" / "draft", folder / "draft")
    (folder / "provenance.json").write_text(json.dumps({"target_weights": weights_fingerprint(target)}))
    assert own_model.default_draft("my/llama").draft == str(folder / "draft")
    assert own_model.default_draft("my/other").draft == "lookup"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load._check_trained_for(folder / "draft", "my/llama")


def test_the_draft_of_ones_own_model_is_looked_up_once_and_named(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def default(place: str) -> own_model.DraftChoice:
        asked.append(place)
        return own_model.DraftChoice("lookup", "copies of the text")

    for module in (own_model, load, shared):
        monkeypatch.setattr(module, "default_draft", default)
    assert shared.load(Models(pair=str(target))).sources["draft"][0] == "lookup+ngrams"
    assert asked == [str(target)]
    assert capsys.readouterr().err.endswith("draft: lookup (copies of the text)\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model {target} --minutes 0", "minutes = 0.0 must be above 0"),
        ("--model {target} --draft lookup", "a head begins from nothing, or from --begin; leave --draft out"),
        ("--model {target} --kind lstm", "'lstm' is not one of 'eagle', 'eagle3', 'medusa', 'dspark'"),
        ("--model {target} --prompts {home}/none.jsonl", "none.jsonl: cannot be read"),
        ("--model {target} --begin {home}/none", "no such folder"),
        ("--model {home}/none", "no such folder"),
        ("--model {target} --kind dspark", "a target of 2 has too few layers: 7 are needed"),
        ("--model {target} --data-path {home}/none", "none is no dataset on disk (no state.json)"),
        ("--model {target} --prompts {home}/none.jsonl --data-path {home}", "leave them out with --data-path"),
        ("--model {target} --kind dspark --export speculators", "--export speculators is for EAGLE-3 heads"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(words: str, said: str, target: Path, home: Path) -> None:
    before = sorted(home.rglob("*"))
    done = c2t("draft", "train", *shlex.split(words.format(target=target, home=home)))
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert sorted(home.rglob("*")) == before


def test_a_folder_without_a_tokenizer_is_refused(target: Path) -> None:
    for file in target.glob("tokenizer*"):
        file.unlink()
    done = c2t("draft", "train", "--model", target)
    assert done.exit_code == 2
    assert "no tokenizer can be loaded" in done.output
    assert not (target / "c2t").exists()
