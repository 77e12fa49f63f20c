"""`c2t tune`, and `--tuned` of generate and bench, on the small pair."""

import json
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from c2t.cli import terminal
from c2t.cli.app import app
from c2t.costs import measure
from c2t.errors import InputError
from c2t.output.signals import Stopped
from c2t.storage import paths as checkpoints
from tests.cli.test_app import c2t, good, refused

POLICIES = "eagle2:N=8,K=4,levels=2,chain:length=1"
SMALL = ["--limit", "4", "--max-new-tokens", "8", "--policies", POLICIES]


@pytest.fixture
def cache(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measure, "VERIFIED", (1, 8))
    return tmp_path / "cache"


def kept(cache: Path) -> dict:
    [path] = cache.glob("tuned-*.json")
    return json.loads(path.read_text())


def choose(cache: Path, policy: str) -> None:
    """Make this the choice of the only entry, whatever the clock said."""
    text = json.dumps({**kept(cache), "policy": policy})
    next(cache.glob("tuned-*.json")).write_text(text)


def fastest(rows: list[dict]) -> dict:
    """By the clock."""
    return max(rows, key=lambda row: row["against_plain"])


def test_tune_then_use(cache: Path, tmp_path: Path) -> None:
    said = good("tune", *SMALL, "--figure", tmp_path / "speed.png", "--flags", "sglang", "--json", "-")
    assert f"figure: {tmp_path / 'speed.png'}" in said
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    line = json.loads(said.splitlines()[-1])
    assert all(told in said for told in line["figures"]["flags"])
    assert [told.partition(":")[0] for told in line["figures"]["flags"]] == ["sglang", "left out"]
    rows = line["figures"]["rows"]
    assert {row["label"] for row in rows} == {"plain", "eagle2:K=4,levels=2,N=8", "chain:length=1"}
    trees = {row["label"]: row for row in rows}
    assert (trees["plain"]["tau"], trees["plain"]["gamma"], trees["plain"]["draft_passes"]) == (0, 1, 0)
    assert (trees["chain:length=1"]["gamma"], trees["chain:length=1"]["draft_passes"]) == (2, 1)
    assert {row["texts"] for row in rows} == {4}, "three candidates are too few to drop one"
    assert line["configuration"]["batch"] == 1
    assert "device" in line["configuration"]
    assert line["figures"]["best"] == fastest(rows)["label"]
    assert kept(cache)["policy"] == fastest(rows)["policy"]
    assert "use it with: c2t generate --model tiny --tuned TEXT" in " ".join(said.split())

    choose(cache, "eagle2:K=3,levels=2,N=6")
    plain = good("generate", "a number", "--policy", "plain", "--max-new-tokens", "8").splitlines()[0]
    said = good("generate", "a number", "--tuned", "--max-new-tokens", "8", "--json", "-").splitlines()
    assert said[0] == plain
    assert json.loads(said[-1])["configuration"]["policy"].startswith("eagle2:K=3,levels=2,N=6")
    assert line["configuration"]["temperature"] == json.loads(said[-1])["configuration"]["temperature"] == 0
    for command in ("generate", "bench"):
        line = refused(command, "--tuned", "--temperature", "0.7")
        assert "T = 0.7; run c2t tune --batch 1 --temperature 0.7" in line


@pytest.mark.slow
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_a_stopped_command_has_written_no_result(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """It is stopped when all of its work is done, just before it tells what it found."""

    def stopped(*_: object, **__: object) -> None:
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(terminal, "table", stopped)
    lines = tmp_path / "lines.jsonl"
    more = SMALL if command == "tune" else [*SMALL[:2], "--timed", "0", "--max-new-tokens", "4", "--policies", "plain"]
    with pytest.raises(Stopped):
        CliRunner().invoke(app, [command, "--pair", "tiny", *more, "--json", str(lines)])
    assert not lines.exists()
    assert list(cache.glob("tuned-*")) == []


def test_figures_are_written_where_the_choice_cannot_be(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise InputError("cannot store the result")

    monkeypatch.setattr("c2t.study.autotune_cache.store", full)
    done = c2t("tune", *SMALL, "--json", tmp_path / "figures.jsonl")
    assert done.exit_code == 2
    assert "cannot store the result" in done.output
    assert json.loads((tmp_path / "figures.jsonl").read_text())["figures"]["best"]


def test_ngrams_are_part_of_the_choice(cache: Path) -> None:
    """--tuned drafts with them if they were chosen, and the text stays the target's."""
    said = good("tune", *SMALL, "--policies", "chain:length=1", "--ngrams", "--json", "-").splitlines()
    rows = json.loads(said[-1])["figures"]["rows"]
    with_ngrams = {row["label"]: row["ngrams"] for row in rows}
    assert with_ngrams == {"plain": False, "chain:length=1": False, "chain:length=1 +ngrams": True}
    assert kept(cache)["ngrams"] == fastest(rows)["ngrams"]
    [path] = cache.glob("tuned-*.json")
    path.write_text(json.dumps({**kept(cache), "policy": "chain:length=2", "ngrams": True}))
    plain = good("generate", "a number", "--policy", "plain", "--max-new-tokens", "8").splitlines()[0]
    assert good("generate", "a number", "--tuned", "--max-new-tokens", "8").splitlines()[0] == plain
    line = good("bench", "--tuned", "--max-new-tokens", "4", "--limit", "1", "--timed", "0", "--json", "-")
    assert json.loads(line.splitlines()[-1])["configuration"]["sources"]["draft"][0].endswith("+ngrams")
    assert "--flags vllm: its drafts have no n-grams" in refused("tune", *SMALL, "--ngrams", "--flags", "vllm")


@pytest.mark.slow
def test_bench_shows_what_tune_measured_and_what_it_measures(cache: Path) -> None:
    good("tune", *SMALL)
    short = ["bench", "--tuned", "--max-new-tokens", "4", "--limit", "1"]
    choose(cache, "eagle2:K=3,levels=2,N=6,M=0,expand=value,reranked=True")
    said = good(*short, "--timed", "1", "--json", "-").splitlines()
    assert [row["label"] for row in json.loads(said[-1])["figures"]["rows"]] == ["plain", "eagle2:K=3,levels=2,N=6"]
    [line] = [line for line in said if line.startswith("tuned: eagle2:K=3,levels=2,N=6, ")]
    assert "tokens/s in c2t tune" in line
    assert "measured here" in line
    assert "not measured" in good(*short, "--timed", "0")
    choose(cache, "plain")
    said = good(*short, "--timed", "0", "--json", "-").splitlines()
    assert [row["label"] for row in json.loads(said[-1])["figures"]["rows"]] == ["plain"]


@pytest.mark.slow
def test_a_batch_of_its_own(cache: Path, tmp_path: Path) -> None:
    """What was tuned for two prompts decodes two, and neither one nor three."""
    said = good("tune", *SMALL, "--batch", "2", "--json", "-")
    rows = json.loads(said.splitlines()[-1])["figures"]["rows"]
    assert "batch size 2, T = 0\n" in said
    assert kept(cache)["policy"] == fastest(rows)["policy"]
    assert kept(cache)["key"]["batch"] == 2
    assert "batch size 1 and T = 0; run c2t tune --batch 1 --temperature 0" in refused("generate", "--tuned")

    choose(cache, "eagle2:K=3,levels=2,N=6")
    files = {count: tmp_path / f"{count}.jsonl" for count in (2, 3)}
    for count, file in files.items():
        turns = [{"question_id": n, "turns": [f"the number {n}", "never read"]} for n in range(count)]
        file.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    short = ["--max-new-tokens", "8"]
    plain = good("generate", "--prompts", files[2], "--policy", "plain", *short)
    begun = [line[:12] for line in plain.splitlines() if line.startswith("the number")]
    assert begun == ["the number 0", "the number 1"]
    said = good("generate", "--prompts", files[2], "--tuned", *short, "--json", "-")
    text, _, line = said.rstrip("\n").rpartition("\n")
    assert text + "\n" == plain
    assert json.loads(line)["configuration"]["policy"].startswith("eagle2:K=3,levels=2,N=6")
    assert plain == "".join(f"the number {n}{new}\n" for n, new in enumerate(json.loads(line)["figures"]["texts"]))
    line = refused("generate", "--prompts", files[3], "--tuned")
    assert "batch size 3 and T = 0; run c2t tune --batch 3 --temperature 0" in line

    bench = ["bench", "--tuned", "--timed", "1", "--max-new-tokens", "4"]
    rows = json.loads(good(*bench, "--batch", "2", "--json", "-").splitlines()[-1])["figures"]["rows"]
    assert [row["label"] for row in rows] == ["plain", "eagle2:K=3,levels=2,N=6"]
    assert "batch size 4 and T = 0; run c2t tune --batch 4 --temperature 0" in refused(*bench, "--batch", "2,4")


def test_what_does_not_go_together(cache: Path, tmp_path: Path) -> None:
    for more in (["--policy", "plain"], ["--beta", "0.5"]):
        assert "leave --policy and --beta out" in refused("generate", "--tuned", *more)
    for more in (["a number"], ["--chat"]):
        line = refused("generate", *more, "--prompts", tmp_path / "prompts.jsonl")
        assert "--prompts is in place of PROMPT and of --chat: leave one out" in line
    assert "prompts.jsonl: cannot be read" in refused("generate", "--prompts", tmp_path / "prompts.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["generate", "bench"])
def test_what_was_not_tuned_or_is_damaged(cache: Path, command: str) -> None:
    line = refused(command, "--tuned")
    assert "nothing was tuned for tiny" in line
    assert "run c2t tune" in line
    good("tune", *SMALL)
    next(cache.glob("tuned-*.json")).write_text("{")
    assert "is damaged; run c2t tune" in refused(command, "--tuned")
    good("tune", *SMALL)
    assert c2t("generate", "--tuned", "--max-new-tokens", "2").exit_code == 0


def test_a_classifier_by_path_is_given_again(cache: Path) -> None:
    """The cache's word for it would be a path, or a request to the Hub, that nobody has named."""
    good("tune", *SMALL)
    [file] = cache.glob("tuned-*.json")
    entry = json.loads(file.read_text()) | {"policy": "c2t:K=2,W=2,levels=2"}
    folder = str(checkpoints.checkout() / "checkpoints/tiny/classifier")
    assert c2t("generate", "--tuned", "--max-new-tokens", "2").exit_code == 0
    for place in (folder, "someone/classifier"):
        file.write_text(json.dumps(entry | {"classifier": place}))
        assert f"give --classifier {place}" in refused("generate", "--tuned", "--max-new-tokens", "2")
    assert "the policy was tuned with" in refused("bench", "--tuned", "--classifier", "tiny", "--max-new-tokens", "2")
    file.write_text(json.dumps(entry | {"classifier": folder}))
    good("generate", "--tuned", "--classifier", folder, "--max-new-tokens", "2")
    file.write_text(json.dumps(entry | {"policy": "plain", "classifier": "tiny"}))
    assert "tuned with tiny; leave" in refused("generate", "--tuned", "--classifier", folder, "--max-new-tokens", "2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "batch = 0 must be at least 1"),
        (["--batch", "4", "--limit", "3"], "use --limit 4"),
        (["--policies", "eagle3"], "no policy is called 'eagle3'"),
        (["--draft", "lookup", "--ngrams"], "--draft lookup has +ngrams already; leave --ngrams out"),
        (["--policies", "budget:costs=a.json,of=eagle2"], "budget:costs=a.json: c2t tune measures the costs itself"),
        (["--minutes", "0"], "minutes = 0.0 must be more than 0"),
    ],
)
def test_wrong_arguments(cache: Path, arguments: list[str], message: str) -> None:
    assert message in refused("tune", *arguments)
    assert not [*cache.glob("tuned-*.json")]


def test_an_engine_that_can_run_none_of_the_policies_is_refused_before_the_work(cache: Path) -> None:
    line = refused("tune", "--pair", "tiny", "--policies", "eagle2:N=8", "--flags", "vllm")
    assert "it runs chains, and --policies has none; add chain:length=2" in line
    assert not list(cache.glob("tuned-*.json"))
