"""Harvests in shards: which shard runs what, and the merged harvest is one process's, byte for byte."""

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from c2t.cli import info as information
from c2t.cli.app import app
from c2t.errors import InputError
from c2t.harvest import harvest as harvesting
from c2t.harvest import merge as merging
from c2t.harvest.harvest import harvest
from c2t.harvest.merge import merge
from c2t.harvest.settings import HarvestSettings
from c2t.harvest.shards import WHOLE, ShardNumber, grouped
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import Pair
from c2t.records.schema import MANIFEST, Harvest
from c2t.records.writer import ShardWriter
from c2t.replay.prompts import Prompt
from c2t.storage.checksum import checksum
from tests.harvests import assert_same_rows
from tests.hostile.starved import files_end_at
from tests.small_pair import TURNS

LONG = "The sum of two numbers is a number. " * 200  # which the target has no room for
PROMPTS = [Prompt(number, "known", [turn], "code.jsonl") for number, turn in enumerate(TURNS[:4])]
PROMPTS += [Prompt(9, "heldout", ["The sum of", "a number is", "def add"], "chat.jsonl")]
PROMPTS += [Prompt(10, "known", [LONG], "code.jsonl"), Prompt(11, "known", ["a number is 9"], "code.jsonl")]
SMALL = HarvestSettings(K=3, levels=3, M=100, max_new_tokens=8, batch=2, columns=("top_probs",))  # four groups
COUNT = 3


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def small_shards(small_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Harvest, Path]:
    """The harvest of one process, whose files end after 100 rows; and the folder of its three shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harvesting, "ShardWriter", partial(ShardWriter, rows_per_shard=100))
        whole = harvest(small_pair, PROMPTS, tmp_path_factory.mktemp("whole"), SMALL)
    out = tmp_path_factory.mktemp("shards")
    for number in (ShardNumber(index, COUNT) for index in range(COUNT)):
        harvest(small_pair, PROMPTS, number.folder(out), SMALL, shard=number)
    return whole, out


@pytest.fixture
def shards(small_shards: tuple[Harvest, Path], tmp_path: Path) -> Path:
    """A copy of the shards that the test may change."""
    return shutil.copytree(small_shards[1], tmp_path / "shards")


def test_merged_files_are_those_of_one_process(
    small_shards: tuple[Harvest, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a text that is too long, a conversation of three turns, a further column and several files."""
    monkeypatch.setattr(merging, "ShardWriter", partial(ShardWriter, rows_per_shard=100))
    whole, out = small_shards
    done = merge(out, tmp_path / "merged")
    assert len(whole.shards) > 3
    assert whole.too_long == 1
    assert done._replace(folder=whole.folder) == whole
    assert files(done.folder) == files(whole.folder)


def test_a_shard_goes_on_by_itself(
    small_shards: tuple[Harvest, Path], small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = ShardNumber(0, COUNT)
    monkeypatch.setattr(harvesting, "ShardWriter", partial(ShardWriter, seconds_per_shard=0.0))
    whole = number.folder(small_shards[1])

    def stop(done: int, *_: object) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harvest(small_pair, PROMPTS, tmp_path / whole.name, SMALL, shard=number, progress=stop)
    assert not (tmp_path / whole.name / MANIFEST).exists()
    for name in ("shard-1-of-3", "shard-2-of-3"):
        shutil.copytree(small_shards[1] / name, tmp_path / name)
    with pytest.raises(InputError, match="interrupted harvest"):
        merge(tmp_path, tmp_path.parent / "merged")
    harvest(small_pair, PROMPTS, tmp_path / whole.name, SMALL, shard=number, resume=True)
    merged = merge(tmp_path, tmp_path.parent / f"{tmp_path.name}-merged")
    assert (merged.rows, merged.trees) == (small_shards[0].rows, small_shards[0].trees)


def change(path: Path, **entries: object) -> None:
    """Write other provenance into a shard's manifest, with a fitting checksum."""
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["provenance"] |= entries
    (path / MANIFEST).write_text(json.dumps(manifest | {"sha256": checksum(manifest)}))


def other_version(shards: Path) -> None:
    was = json.loads((shards / "shard-2-of-3" / MANIFEST).read_text())["provenance"]["environment"]
    change(shards / "shard-2-of-3", environment=was | {"c2t": "9.9"})


def damaged(shards: Path) -> None:
    """A flipped bit in the last pages, found when the first texts are merged already."""
    path = shards / "shard-0-of-3" / "part-00000.parquet"
    content = bytearray(path.read_bytes())
    content[100:110] = bytes(10)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda to: shutil.rmtree(to / "shard-1-of-3"), "lacks shard 1 of 3: run c2t harvest --shard 1/3"),
        (lambda to: shutil.copytree(to / "shard-1-of-3", to / "shard-1-again"), "holds shard 1 of 3 twice"),
        (lambda to: change(to / "shard-2-of-3", seed=7), "not shards of one harvest: seed = 0 there, 7 here"),
        (other_version, "not shards of one harvest: c2t = .* there, 9.9 here"),
        (lambda to: change(to / "shard-2-of-3", shard=[2, 4]), "holds shards of 3 and of 4"),
        (lambda to: change(to / "shard-2-of-3", shard=None), "no shard of one"),
        (damaged, "is damaged"),
        (shutil.rmtree, "cannot be read as a folder of shards"),
    ],
)
def test_what_cannot_be_merged(shards: Path, tmp_path: Path, harm: Callable[[Path], None], message: str) -> None:
    """Nothing is merged by half; the shards stay, and an older harvest too."""
    harm(shards)
    before = {path: path.read_bytes() for path in shards.rglob("*.*") if path.is_file()}
    out = tmp_path / "out"
    with pytest.raises(InputError, match=message):
        merge(shards, out, overwrite=True)
    assert not out.exists() or not files(out)
    assert not (tmp_path / ".out.new").exists()
    assert {path: path.read_bytes() for path in shards.rglob("*.*") if path.is_file()} == before


def test_a_merge_that_writes_nothing_leaves_an_unfinished_harvest(shards: Path, tmp_path: Path) -> None:
    """That of a `harvest --overwrite` into the same folder."""
    damaged(shards)
    begun = shutil.copytree(shards / "shard-1-of-3", tmp_path / ".out.new", ignore=shutil.ignore_patterns(MANIFEST))
    before = files(begun)
    with pytest.raises(InputError, match="is damaged"):
        merge(shards, tmp_path / "out", overwrite=True)
    assert files(begun) == before


def test_a_merge_without_room_is_to_be_run_again(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = rf"cannot write to {out}: [^;]*; {out} is as it was, and so are the shards; run the command again"
    with files_end_at(1000), pytest.raises(InputError, match=f"^{line}$"):
        merge(shards, out)
    assert not (tmp_path / ".out.new").exists()


def test_nothing_is_merged_for_a_mount_point(shards: Path) -> None:
    with pytest.raises(InputError, match="/proc is a mount point, which nothing can replace"):
        merge(shards, Path("/proc"), progress=lambda *_: pytest.fail("a text was merged"))


DATED = "{% for m in messages %}{{ m.content }}{% endfor %} 2026-11-2"


def dated(pair: Pair, day: int) -> Pair:
    """Return the pair with a chat template that has written this day into the prompts."""
    tokenizer = deepcopy(pair.tokenizer)
    tokenizer.chat_template = f"{DATED}{day}"
    return replace(pair, template="chat", tokenizer=tokenizer)


def test_prompts_that_were_read_otherwise_are_another_harvest(small_pair: Pair, tmp_path: Path) -> None:
    """Its shards, and what resumes it; the texts of the prompts are the same."""
    for index, day in enumerate((7, 8)):
        number = ShardNumber(index, 2)
        harvest(dated(small_pair, day), PROMPTS[:4], number.folder(tmp_path / "shards"), SMALL, shard=number)
    with pytest.raises(InputError, match="are not shards of one harvest: prompt_ids = "):
        merge(tmp_path / "shards", tmp_path / "out")
    folder = ShardNumber(1, 2).folder(tmp_path / "shards")
    with pytest.raises(InputError, match="cannot be resumed with other settings: prompt_ids = "):
        harvest(dated(small_pair, 7), PROMPTS[:4], folder, SMALL, shard=ShardNumber(1, 2), resume=True)


def test_a_process_that_reads_the_prompts_otherwise_harvests_none(small_pair: Pair, tmp_path: Path) -> None:
    """As a Ray worker could, with other files on its machine; and the texts before are not lost."""
    pair = dated(small_pair, 7)

    def changed(done: int, *_: object) -> None:
        if done:
            pair.tokenizer.chat_template = f"{DATED}8"

    with pytest.raises(InputError, match=r"the prompts have other token ids here .*; 2 of 4 texts .* safe .*--resume"):
        harvest(pair, PROMPTS[:4], tmp_path / "rows", SMALL, progress=changed)
    right = dated(small_pair, 7), PROMPTS[:4]
    assert_same_rows(harvest(*right, tmp_path / "whole", SMALL), harvest(*right, tmp_path / "rows", SMALL, resume=True))


def test_midnight_changes_no_prompt(small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, seen = dated(small_pair, 7), []
    pair.tokenizer.chat_template = "{{ strftime_now('%f') }} {{ messages[0].content }}"

    def read(*given: Any, **named: Any) -> list[int]:
        seen.append(pair.tokenizer.decode(ids := conversation(*given, **named)))
        return ids

    monkeypatch.setattr(harvesting, "conversation", read)
    harvest(pair, PROMPTS[:2], tmp_path / "rows", SMALL)
    assert len(seen) == 4
    assert len({text.split()[0] for text in seen}) == 1, "the microseconds of its beginning"


def test_a_shard_whose_texts_are_all_too_long_is_a_part(small_pair: Pair, tmp_path: Path) -> None:
    settings, prompts = replace(SMALL, batch=1), [PROMPTS[-2], PROMPTS[-1]]
    for number in (ShardNumber(0, 2), ShardNumber(1, 2)):
        harvest(small_pair, prompts, number.folder(tmp_path / "shards"), settings, shard=number)
    [facts] = information.folder(ShardNumber(0, 2).folder(tmp_path / "shards"))
    counts = [facts.values[name] for name in ("rows", "texts", "texts without rows", "too long")]
    assert counts == [0, 1, 1, 1]
    assert "bytes a row" not in facts.values
    assert merge(tmp_path / "shards", tmp_path / "out").too_long == 1


def test_a_merge_replaces_only_if_told_to(shards: Path, tmp_path: Path) -> None:
    first = merge(shards, tmp_path / "out")
    with pytest.raises(InputError, match="is not empty"):
        merge(shards, tmp_path / "out")
    assert merge(shards, tmp_path / "out", overwrite=True) == first
    for path in shards.iterdir():
        change(path, prompt_ids=None)  # as older versions do not say what they have read
    assert merge(shards, tmp_path / "older").rows == first.rows


def test_groups_are_dealt_in_turn() -> None:
    groups = grouped(PROMPTS, 2)
    assert [group.first for group in groups] == [0, 2, 4, 8]
    assert [len(group.prompts) for group in groups] == [2, 2, 2, 1]
    assert [group.first for group in ShardNumber(0, 3).deal(groups)] == [0, 8]
    assert WHOLE.deal(groups) == groups
    with pytest.raises(InputError, match="shard 4/5 has nothing to do: the prompts make 4 groups"):
        ShardNumber(4, 5).deal(groups)


@pytest.mark.parametrize("text", ["", "3", "3/", "4/4", "1/0", "-1/4", "a/b", "1/2/3", "٣/٤", "1/99999"])
def test_numbers_that_are_no_shard(text: str) -> None:
    with pytest.raises(InputError, match="write i/n"):
        ShardNumber.parse(text)


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({}, WHOLE),
        ({"RANK": "0", "WORLD_SIZE": "1"}, WHOLE),
        ({"RANK": "2", "WORLD_SIZE": "4"}, ShardNumber(2, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "3"}, ShardNumber(1, 3)),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "3"}, ShardNumber(0, 2)),
        ({"SLURM_NTASKS": "3"}, WHOLE),
    ],
)
def test_the_process_says_its_number(environment: dict, number: ShardNumber) -> None:
    assert ShardNumber.of_process(environment)[0] == number
    with pytest.raises(InputError, match="RANK = '7' and WORLD_SIZE = '2' number no shard"):
        ShardNumber.of_process({"RANK": "7", "WORLD_SIZE": "2"})


def test_a_shard_is_not_resumed_as_another(shards: Path, small_pair: Pair) -> None:
    for settings, shard in ((SMALL, ShardNumber(1, 3)), (replace(SMALL, seed=3), WHOLE)):
        with pytest.raises(InputError, match="cannot be resumed with other settings"):
            harvest(small_pair, PROMPTS, shards / "shard-0-of-3", settings, shard=shard, resume=True)


def c2t(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def test_shards_that_name_no_policy_have_a_default_folder(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("C2T_HOME", str(tmp_path))
    for path in shards.glob(f"*/{MANIFEST}"):
        manifest = json.loads(path.read_text()) | {"sha256": None}
        del manifest["provenance"]["policy"]
        manifest["provenance"]["pair"] = "small"
        path.write_text(json.dumps(manifest))
    assert c2t("harvest", "--merge", shards).exit_code == 0
    assert (tmp_path / "data" / "harvest" / "small" / MANIFEST).is_file()


@pytest.mark.slow
def test_commands_by_torchruns_variables(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --out: every process finds the place, and so does the merge."""
    small = ["--pair", "tiny", "--limit", "5", "--batch", "2", *["--k", "3", "--levels", "3", "--max-new-tokens", "6"]]
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        said = c2t("harvest", *small)
        assert (said.exit_code, f"shard {rank} of 2 (by RANK and WORLD_SIZE)" in said.stderr) == (0, True), said.output
    shards = home / "data" / "harvest" / "tiny-shards"
    assert f"c2t harvest --merge {shards}" in said.stdout
    assert c2t("harvest", "--merge", shards).exit_code == 0
    whole = c2t("harvest", *small, "--shard", "0/1", "--out", home / "whole")
    assert whole.exit_code == 0
    assert files(home / "data" / "harvest" / "tiny") == files(home / "whole")
    for more in (["--pair", "tiny"], ["--shard", "0/2"], ["--resume"], ["--max-new-tokens", "6"]):
        refused = c2t("harvest", "--merge", shards, *more)
        assert refused.exit_code == 2
        assert refused.stderr == f"c2t: --merge takes everything from the shards: leave {more[0]} out\n"
