"""What is read back is what was written; whatever is not a complete harvest of ours is named in one line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from c2t.errors import InputError
from c2t.records.reader import describe, read_columns, read_records
from c2t.records.schema import COLUMNS, ColumnType
from c2t.records.writer import ShardWriter, open_folder
from tests.harvests import PROVENANCE, make_harvest, prompt_list, trees
from tests.rounding import assert_within, figure, growth


@pytest.fixture
def harvest(tmp_path: Path) -> Path:
    return make_harvest(tmp_path / "harvest", prompts=3, trees_each=2, shard=1)


def test_columns_come_back_as_written(harvest: Path) -> None:
    columns = read_columns(harvest, list(COLUMNS))
    for name, column in COLUMNS.items():
        assert columns[name].dtype == column.dtype
    for prompt in range(3):
        mine = columns["prompt"] == prompt
        for name, values in trees(2, seed=prompt).items():
            expected = values + 2 * prompt if name == "tree" else values
            assert np.array_equal(columns[name][mine], expected.astype(columns[name].dtype)), name


def test_summary_counts_the_rows(harvest: Path) -> None:
    summary = describe(harvest)
    accepted = read_columns(harvest, ["accepted"])["accepted"]
    assert (summary.rows, summary.trees, len(summary.prompts)) == (len(accepted), 6, 3)
    assert summary.rows == 6 * 1010
    assert summary.positives == accepted.sum() > 0
    assert summary.provenance == PROVENANCE


def test_records_of_two_harvests_have_their_own_prompts_and_trees(harvest: Path, tmp_path: Path) -> None:
    other = make_harvest(tmp_path / "other", prompts=2, trees_each=3)
    both = read_records([harvest, other])
    assert both.tree.unique().tolist() == list(range(12))
    assert both.prompt.unique().tolist() == list(range(5))
    alone = read_columns(other, ["joint_prob"])["joint_prob"]
    log = both.log_joint[6 * 1010 :].double()
    exact = torch.from_numpy(alone).double()  # its logarithm is rounded, by a part of its own size
    assert_within(log.exp(), exact, growth(2) * (1 + log.abs()) * exact)


def test_paths_that_underflow_have_no_logs(tmp_path: Path) -> None:
    """Under a node of 1e-20: one of as much, whose path float32 does not hold, and one of 0.5."""
    joint = np.array([1e-20, 1.0, 1e-40, 0.5e-20, 0.0])
    columns = {"tree": np.zeros(5), "node": np.arange(5), "parent": np.array([-1, -1, 0, 0, 2]), "joint_prob": joint}
    columns |= {"depth": np.array([0, 0, 1, 1, 2]), "accepted": np.arange(5) == 1, "entropy": np.ones(5)}
    columns |= {"token": np.zeros(5), "rank": np.zeros(5), "position": np.zeros(5)}
    with ShardWriter(open_folder(tmp_path), PROVENANCE, prompt_list(1)) as writer:
        writer.write(columns)
    found = read_records([tmp_path], ["log_prob", "max_log_prob"])
    nan, tiny, half = float("nan"), float(torch.tensor(1e-20).log()), float(torch.tensor(0.5).log())
    assert found.log_joint[[0, 1, 2, 4]].tolist() == [tiny, 0, -float("inf"), -float("inf")]
    assert found.log_joint.exp()[[2, 4]].tolist() == [0, 0]
    assert found.log_prob.tolist() == figure([tiny, 0, nan, half, nan], 1, torch.float32)
    assert found.max_log_prob.tolist() == figure([0, 0, half, half, nan], 1, torch.float32)


def test_lists_per_row_come_back_as_a_matrix(tmp_path: Path) -> None:
    wide = {"top_probs": ColumnType("float32", 4)}
    make_harvest(tmp_path, prompts=2, trees_each=1, extra=wide)
    matrix = read_columns(tmp_path, ["top_probs"])["top_probs"]
    assert np.array_equal(matrix, np.tile(np.arange(1010 * 4, dtype=np.float32).reshape(-1, 4), (2, 1)))


def test_at_most_eight_bytes_a_row(tmp_path: Path) -> None:
    make_harvest(tmp_path, prompts=4, trees_each=25)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) / describe(tmp_path).rows < 6


SHARD = "part-00001.parquet"
Damage = Callable[[Path], object]


def of_bytes(change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / SHARD).write_bytes(change((folder / SHARD).read_bytes()))


def one_bit(place: float) -> Damage:
    def flipped(content: bytes) -> bytes:
        index = int(len(content) * place)
        return content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :]

    return of_bytes(flipped)


def of_table(change: Callable[[pa.Table], pa.Table]) -> Damage:
    return lambda folder: pq.write_table(change(pq.read_table(folder / SHARD)), folder / SHARD)


def of_metadata(**entries: object) -> Damage:
    def changed(table: pa.Table) -> pa.Table:
        info = json.loads(table.schema.metadata[b"c2t"]) | entries
        return table.replace_schema_metadata({"c2t": json.dumps(info)})

    return of_table(changed)


def of_older_table(change: Callable[[pa.Table], pa.Table]) -> Damage:
    """The shard's table is another one, in an older harvest, whose manifest has no checksums."""

    def damage(folder: Path) -> None:
        of_table(change)(folder)
        of_manifest(checksums=None, sha256=None)(folder)

    return damage


def of_manifest(**entries: object) -> Damage:
    def damage(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | entries))

    return damage


def of_value(name: str, value: int) -> Damage:
    """One row gets another value, in an otherwise right file of an older harvest."""

    def changed(table: pa.Table) -> pa.Table:
        values, field = table[name].to_numpy().copy(), table.schema.field(name)
        values[5] = value
        return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))

    return of_older_table(changed)


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


PROVENANCE_WITHOUT = {
    entry: {name: value for name, value in PROVENANCE.items() if name != entry} for entry in ("M", "pair")
}
NULL = pa.array([None], pa.float32())
UNLISTED = "rows of prompts or trees that its manifest.json does not list"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "cut": (of_bytes(lambda content: content[:-100]), f"{SHARD} is empty, truncated"),
    "empty": (of_bytes(lambda content: b""), f"{SHARD} is empty, truncated"),
    "pages": (of_bytes(lambda content: content[:100] + b"x" * 4900 + content[5000:]), f"{SHARD} is damaged"),
    "one bit": (one_bit(1 / 3), f"{SHARD} is damaged"),
    "one bit of the footer": (one_bit(0.999), f"{SHARD} is damaged"),
    "foreign": (
        of_table(lambda _: pa.table({"joint_prob": [0.5], "accepted": [True]})),
        f"{SHARD} is a Parquet file of another program",
    ),
    "version": (of_metadata(schema_version=99, rows=None), f"{SHARD} has schema version 99; this version"),
    "manifest's version": (of_manifest(schema_version=99, rows=None), "manifest.json has schema version 99"),
    "no M": (of_manifest(provenance=PROVENANCE_WITHOUT["M"]), "manifest.json is damaged: provenance.M is missing"),
    "no pair": (of_manifest(provenance=PROVENANCE_WITHOUT["pair"]), "damaged: provenance.pair is missing"),
    "metadata": (of_metadata(prompts="x"), f"{SHARD} is damaged: its metadata: prompts = 'x' must be a list"),
    "deep metadata": (
        of_table(lambda table: table.replace_schema_metadata({"c2t": "[" * 5000 + "]" * 5000})),
        f"{SHARD} is damaged: its metadata",
    ),
    "prompt number": (of_value("prompt", 99), UNLISTED),
    "large prompt number": (of_value("prompt", 2**32 - 1), UNLISTED),
    "tree number": (of_value("tree", 10**6), UNLISTED),
    "type": (
        of_older_table(lambda table: table.set_column(3, "depth", table["depth"].cast(pa.uint64()))),
        f"{SHARD} is damaged: depth is no column of uint8",
    ),
    "twice": (
        of_older_table(lambda table: table.append_column("depth", table["depth"])),
        f"{SHARD} is damaged: depth is no column of uint8",
    ),
    "column": (
        of_older_table(lambda table: table.drop_columns(["rank"])),
        f"{SHARD} is damaged: rank is no column of uint8",
    ),
    "extra": (
        of_older_table(lambda table: table.append_column("hidden", table["depth"].cast(pa.string()))),
        f"{SHARD} is damaged: hidden is no column of floats",
    ),
    "null": (
        of_older_table(lambda table: pa.concat_tables([table[:-1], table[-1:].set_column(5, "entropy", NULL)])),
        f"{SHARD} is damaged: it has rows without values",
    ),
    "gap": (without(SHARD), "part-00002.parquet does not continue"),
    "end": (without("part-00002.parquet"), "part-00002.parquet is missing"),
    "unfinished": (without("manifest.json"), "interrupted harvest .*--resume"),
    "manifest": (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json is damaged"),
    "everything": (lambda folder: [path.unlink() for path in folder.iterdir()], "holds no harvest"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_in_one_line(harvest: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(harvest)
    with pytest.raises(InputError, match=message) as raised:
        read_records([harvest])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "value"), [("parent", 30_000), ("parent", -2), ("node", 60_000)])
def test_parents_stand_before_their_children(harvest: Path, name: str, value: int) -> None:
    of_value(name, value)(harvest)
    with pytest.raises(InputError, match="nodes whose parents do not stand before them"):
        read_records([harvest], ["log_prob"])


def test_wrong_paths_and_columns(harvest: Path) -> None:
    with pytest.raises(InputError, match="nowhere is missing"):
        describe(harvest / "nowhere")
    with pytest.raises(InputError, match="is a file: give the folder"):
        describe(harvest / "manifest.json")
    with pytest.raises(InputError, match="no column colour; it has tree, node"):
        read_columns(harvest, ["depth", "colour"])


def test_nothing_accepted_is_nothing_to_learn(tmp_path: Path) -> None:
    make_harvest(tmp_path, prompts=2, trees_each=1, replace={"accepted": np.zeros(1010, bool)})
    with pytest.raises(InputError, match="no accepted node among 2020"):
        read_records([tmp_path])
