"""A harvest may stop anywhere and still ends with the rows of one that did not."""

import contextlib
import errno
import inspect
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from c2t.errors import InputError
from c2t.records import writer as shards
from c2t.records.reader import describe, is_complete, read_columns
from c2t.records.schema import COLUMNS, MANIFEST
from c2t.records.writer import ShardWriter, open_folder
from c2t.storage import atomic
from tests.flips import flips
from tests.harvests import PROVENANCE, make_harvest, prompt_list, trees
from tests.hostile.starved import files_end_at

PROMPTS = 7
SMALL = {"K": 3, "levels": 3}
PER_SHARD = 100  # three prompts of two trees of 21 nodes


NOTHING = {name: np.empty(0) for name in COLUMNS if name != "prompt"}


def write(writer: ShardWriter, prompts: Iterable[int]) -> None:
    for prompt in prompts:
        writer.write(trees(2, seed=prompt, **SMALL))


def write_until(folder: Path, stop: int, error: BaseException | None = None, **changes) -> ShardWriter:
    """Continue the harvest up to prompt `stop`, where `error` strikes."""
    provenance = PROVENANCE | changes.pop("provenance", {})
    writer = ShardWriter(folder, provenance, prompt_list(PROMPTS), rows_per_shard=PER_SHARD, **changes)
    with writer:
        write(writer, range(writer.next_prompt, stop))
        if error:
            raise error
    return writer


def interrupted(folder: Path, stop: int, **provenance) -> Path:
    with pytest.raises(KeyboardInterrupt):
        write_until(open_folder(folder, resume=True), stop, KeyboardInterrupt(), provenance=provenance)
    assert not is_complete(folder)
    return folder


def all_rows(folder: Path) -> dict[str, np.ndarray]:
    return read_columns(folder, list(COLUMNS))


def assert_rows(folder: Path, expected: dict[str, np.ndarray]) -> None:
    for name, values in all_rows(folder).items():
        assert np.array_equal(values, expected[name]), name


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, np.ndarray]:
    write_until(open_folder(tmp_path / "whole"), PROMPTS)
    return all_rows(tmp_path / "whole")


def test_a_complete_harvest_that_has_lost_its_last_shard_goes_on(tmp_path: Path, whole: dict) -> None:
    """Its old manifest counts the rows of a longer shard than the one that an interruption leaves."""
    folder = make_harvest(tmp_path / "rows", PROMPTS, 2, shard=168, **SMALL)
    assert list(describe(folder).shards.values()) == [168, 126]
    (folder / "part-00001.parquet").unlink()
    interrupted(folder, 5)
    with pytest.raises(InputError, match=r"interrupted harvest .*--resume"):
        describe(folder)
    write_until(open_folder(folder, resume=True), PROMPTS)
    assert_rows(folder, whole)


@pytest.mark.parametrize("stops", [[0], [1], [3], [4], [6], [2, 5], [1, 2, 3, 4, 5, 6]])
def test_interrupted_and_resumed_gives_the_same_rows(tmp_path: Path, whole: dict, stops: list[int]) -> None:
    for stop in stops:
        folder = interrupted(tmp_path / "parts", stop)
    resumed = write_until(open_folder(folder, resume=True), PROMPTS)
    assert resumed.rows == describe(folder).rows
    assert_rows(folder, whole)


def test_a_killed_process_loses_only_the_open_shard(tmp_path: Path, whole: dict) -> None:
    folder = open_folder(tmp_path / "killed")
    writer = ShardWriter(folder, PROVENANCE, prompt_list(PROMPTS), rows_per_shard=PER_SHARD)
    write(writer, range(5))
    (folder / "part-00001.tmp").write_bytes(b"half a shard")
    del writer
    resumed = ShardWriter(folder, PROVENANCE, prompt_list(PROMPTS), rows_per_shard=PER_SHARD)
    assert (resumed.next_prompt, resumed.next_tree) == (3, 6)
    write_until(folder, PROMPTS)
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST, *(f"part-0000{i}.parquet" for i in range(3))]
    assert_rows(folder, whole)


def test_a_shard_ends_by_rows_or_by_time(tmp_path: Path, whole: dict) -> None:
    """Whichever comes first; and the rows are the same."""
    usual = inspect.signature(ShardWriter).parameters
    assert (usual["rows_per_shard"].default, usual["seconds_per_shard"].default) == (1_000_000, 120)
    for seconds, shards_left in ((3600.0, 1), (0.0, 3)):
        folder = open_folder(tmp_path / str(seconds))
        writer = ShardWriter(folder, PROVENANCE, prompt_list(PROMPTS), seconds_per_shard=seconds, rows_per_shard=100)
        for batch in (range(1), range(1, 5)):  # the second one is more than a shard
            write(writer, batch)
            writer.checkpoint()
        assert len(list(folder.glob("*.parquet"))) == shards_left
        write_until(open_folder(folder, resume=True), PROMPTS)
        assert_rows(folder, whole)


def test_a_flipped_bit_of_the_manifest_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    folder = make_harvest(tmp_path / "rows", prompts=3, trees_each=1, **SMALL)
    facts = describe(folder)

    def same() -> bool:
        try:
            return describe(folder) == facts
        except InputError as error:
            return "\n" not in str(error)

    assert list(flips(folder / MANIFEST, same, 300)) == []


def test_a_manifest_without_a_checksum_is_read(tmp_path: Path) -> None:
    """Older versions wrote none."""
    folder = make_harvest(tmp_path / "rows", prompts=2, trees_each=1, **SMALL)
    facts, manifest = describe(folder), json.loads((folder / MANIFEST).read_text())
    assert len(manifest.pop("sha256")) == 64
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert describe(folder) == facts


def test_a_damaged_harvest_is_not_resumed_as_a_whole_one(tmp_path: Path) -> None:
    """A new manifest would have the damaged shard's checksum."""
    folder = make_harvest(tmp_path / "rows", prompts=2, trees_each=1, **SMALL)
    shard, manifest = folder / "part-00000.parquet", (folder / MANIFEST).read_bytes()
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match="does not have its checksum"):
        ShardWriter(open_folder(folder, resume=True), PROVENANCE, prompt_list(2)).close()
    assert (folder / MANIFEST).read_bytes() == manifest


def test_prompts_without_rows_count_as_done(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "gaps")
    with ShardWriter(folder, PROVENANCE, prompt_list(3), rows_per_shard=1) as writer:
        for columns in (NOTHING, trees(2, seed=0, **SMALL), NOTHING):
            writer.write(columns)
    assert set(all_rows(folder)["prompt"]) == {1}
    assert describe(folder).too_long == 0
    assert len(describe(folder).prompts) == 3
    assert ShardWriter(folder, PROVENANCE, prompt_list(3)).next_prompt == 3


def test_an_error_of_one_line_says_how_to_go_on(tmp_path: Path, whole: dict) -> None:
    """As where a worker has died for good; without a row there is nothing to go on with."""
    folder = open_folder(tmp_path / "parts")
    for stop, left in ((0, ""), (4, rf"; 4 of 7 texts \(168 rows\) are safe in {folder}; go on with .* --resume")):
        with pytest.raises(InputError, match=f"^a worker died{left}$"):
            write_until(folder, stop, InputError("a worker died"))
    write_until(open_folder(folder, resume=True), PROMPTS)
    assert_rows(folder, whole)


def test_too_long_prompts_are_counted_through_an_interruption(tmp_path: Path) -> None:
    for stop in (2, 4):
        with contextlib.suppress(KeyboardInterrupt), ShardWriter(tmp_path, PROVENANCE, prompt_list(4)) as writer:
            for prompt in range(writer.next_prompt, stop):
                rows = NOTHING if prompt % 2 else trees(1, seed=prompt, **SMALL)
                writer.write(rows, too_long=bool(prompt % 2))
            if stop == 2:
                raise KeyboardInterrupt
    assert describe(tmp_path).too_long == 2


def test_resuming_needs_the_same_settings_and_prompts(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "parts", 4)
    with pytest.raises(InputError, match=r"temperature = 0\.4 there, 0\.8 now"):
        write_until(folder, PROMPTS, provenance={"temperature": 0.8})
    for part in ("target", "draft"):
        sources = {"target": ["there", "1"], "draft": ["here", "2"]} | {part: ["elsewhere", "3"]}
        other = interrupted(tmp_path / part, 4, sources={"target": ["there", "1"], "draft": ["here", "2"]})
        with pytest.raises(InputError, match=rf"{part} = \['t?here', .*there, \['elsewhere', '3'\] now"):
            write_until(other, PROMPTS, provenance={"sources": sources})
    with pytest.raises(InputError, match="prompts are others"):
        ShardWriter(folder, PROVENANCE, prompt_list(PROMPTS + 1))
    write_until(folder, PROMPTS, provenance={"environment": {"c2t": "another version"}})
    assert describe(folder).rows == PROMPTS * 2 * 21


def test_full_disk_leaves_a_folder_that_resumes(tmp_path: Path, whole: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(tmp_path / "full")
    real = pq.write_table

    def no_space(table, where, **options) -> None:
        if "part-00001" in str(where):
            Path(where).write_bytes(b"half a shard")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(table, where, **options)

    monkeypatch.setattr(shards.pq, "write_table", no_space)
    with pytest.raises(InputError, match=r"no disk space left .*; 3 of 7 texts \(126 rows\) are safe in .* --resume"):
        write_until(folder, PROMPTS)
    monkeypatch.undo()
    assert not is_complete(folder)
    assert write_until(open_folder(folder, resume=True), PROMPTS).rows == len(whole["tree"])
    assert_rows(folder, whole)


def test_a_new_harvest_without_a_shard_leaves_nothing_beside_the_old_one(tmp_path: Path) -> None:
    folder = make_harvest(tmp_path / "rows", prompts=1, trees_each=1, K=3, levels=2)
    new = trees(1, seed=1, K=3, levels=2)
    writer = ShardWriter(folder, PROVENANCE, prompt_list(1), overwrite=True)
    with files_end_at(100), pytest.raises(InputError, match="cannot write to"), writer:
        writer.write(new)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    assert describe(folder).rows == len(new["tree"])


def test_any_trouble_with_the_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = interrupted(tmp_path / "parts", 4)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for owner, name, step in (
        (shards.pq, "write_table", lambda: write_until(folder, PROMPTS)),
        (atomic.os, "replace", lambda: write_until(folder, PROMPTS)),
        (shards.Path, "unlink", lambda: write_until(folder, PROMPTS, overwrite=True)),
        (shards.Path, "mkdir", lambda: open_folder(tmp_path / "new")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, read_only)
            with pytest.raises(InputError, match="Read-only file system"):
                step()
    assert write_until(open_folder(folder, resume=True), PROMPTS).rows == PROMPTS * 2 * 21


def test_every_shard_carries_the_whole_provenance(tmp_path: Path) -> None:
    write_until(open_folder(tmp_path), PROMPTS)
    for path in tmp_path.glob("*.parquet"):
        info = json.loads(pq.read_schema(path).metadata[b"c2t"])
        assert info["provenance"] == PROVENANCE
        assert info["rows"] == pq.read_metadata(path).num_rows


def test_values_that_do_not_fit_their_column_are_refused(tmp_path: Path) -> None:
    columns = trees(1, seed=0, **SMALL)
    writer = ShardWriter(open_folder(tmp_path), PROVENANCE, prompt_list(1))
    with pytest.raises(ValueError, match="256"):
        writer.write(columns | {"depth": columns["depth"] + 256})


def test_folders_are_only_continued_or_replaced_on_request(tmp_path: Path) -> None:
    folder = make_harvest(tmp_path / "harvest", prompts=2, trees_each=1, **SMALL)
    with pytest.raises(InputError, match="not empty: continue it with --resume or replace it with --overwrite"):
        open_folder(folder)
    assert is_complete(open_folder(folder, resume=True))
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        open_folder(folder, overwrite=True)
    with pytest.raises(InputError, match="give one of them"):
        open_folder(folder, resume=True, overwrite=True)
    assert is_complete(folder)
    (folder / "notes.txt").unlink()
    with pytest.raises(InputError, match="no rows"), ShardWriter(folder, PROVENANCE, prompt_list(2), overwrite=True):
        raise InputError("no rows")
    assert is_complete(open_folder(folder, overwrite=True))
    write_until(folder, PROMPTS, overwrite=True)
    assert describe(folder).rows == PROMPTS * 2 * 21
    with pytest.raises(KeyboardInterrupt):
        write_until(folder, 5, KeyboardInterrupt(), overwrite=True)
    again = ShardWriter(folder, PROVENANCE, prompt_list(PROMPTS), overwrite=True)
    assert again.next_prompt == 0, "--overwrite begins anew"
    with pytest.raises(InputError, match="is a file"):
        open_folder(Path(__file__))
