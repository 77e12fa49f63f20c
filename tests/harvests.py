"""Made-up harvests with the shape of real ones: full EAGLE-2 trees of 1010 nodes, and acceptance that follows them."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from c2t.records.reader import read_columns
from c2t.records.schema import COLUMNS, ColumnType, Harvest
from c2t.records.writer import ShardWriter, open_folder

PROVENANCE = {
    "pair": "toy",
    "K": 10,
    "levels": 11,
    "M": 1000,
    "temperature": 0.4,
    "seed": 5,
    "environment": {"c2t": "0"},
}
VOCABULARY = 32_000


def prompt_list(count: int) -> list[dict]:
    return [{"question_id": i, "category": "known", "file": "toy.jsonl"} for i in range(count)]


def trees(count: int, seed: int, K: int = 10, levels: int = 11) -> dict[str, np.ndarray]:
    """Columns of `count` full trees: each level's K best candidates by joint probability are expanded in the next."""
    r = np.random.default_rng(seed)
    index = np.arange(count)[:, None]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("parent", "depth", "joint_prob", "entropy", "rank")}
    frontier, joint = np.full((count, 1), -1), np.ones((count, 1))
    accepted_parts, on_path = [], np.ones((count, 1), bool)
    size = 0
    for level in range(levels):
        width = frontier.shape[1]
        weights = np.arange(1, 65) ** -(r.gamma(1.5, 0.8, (count, width, 1)) + 0.6)
        weights /= weights.sum(-1, keepdims=True)
        children = (joint[..., None] * weights[..., :K]).reshape(count, -1)
        rank = np.tile(np.arange(K), (count, width))
        # the target agrees with rank 0 in 70 % of the cases, with rank 1 in 15 %, ...
        choice = np.minimum(r.geometric(0.7, (count, width)) - 1, K)
        accepted = (on_path[..., None] & (choice[..., None] == np.arange(K))).reshape(count, -1)
        entropy = -(weights * np.log(weights)).sum(-1) + r.normal(0, 0.01, (count, width))
        parts["parent"].append(frontier.repeat(K, 1))
        parts["depth"].append(np.full_like(rank, level))
        parts["joint_prob"].append(children)
        parts["entropy"].append(entropy.repeat(K, 1))
        parts["rank"].append(rank)
        accepted_parts.append(accepted)
        best = np.argsort(-children, axis=1, kind="stable")[:, :K]
        frontier, joint, on_path = size + best, children[index, best], accepted[index, best]
        size += children.shape[1]
    columns = {name: np.concatenate(part, axis=1).reshape(-1) for name, part in parts.items()}
    rows = count * size
    return {
        **columns,
        "accepted": np.concatenate(accepted_parts, axis=1).reshape(-1),
        "tree": np.repeat(np.arange(count), size),
        "node": np.tile(np.arange(size), count),
        "token": np.minimum(r.zipf(1.3, rows), VOCABULARY - 1),
        "position": np.repeat(np.arange(count) * 4 + 100, size),
    }


def assert_same_rows(one: Harvest, other: Harvest, names: Iterable[str] = COLUMNS) -> None:
    for name, column in read_columns(one.folder, list(names)).items():
        np.testing.assert_array_equal(column, read_columns(other.folder, [name])[name], err_msg=name)


def make_harvest(
    folder: Path,
    prompts: int = 12,
    trees_each: int = 4,
    *,
    provenance: dict = PROVENANCE,
    extra: dict[str, ColumnType] | None = None,
    replace: dict[str, np.ndarray] | None = None,
    shard: int = 1_000_000,
    prompts_are: list[dict] | None = None,
    first_seed: int = 0,
    **sizes: int,
) -> Path:
    """A complete harvest on disk; the rows of prompt i depend on i and `first_seed` alone."""
    entries = prompts_are or prompt_list(prompts)
    with ShardWriter(open_folder(folder), provenance, entries, extra, rows_per_shard=shard) as writer:
        for i in range(prompts):
            columns = trees(trees_each, seed=first_seed + i, **sizes)
            rows = len(columns["tree"])
            columns |= {name: np.arange(rows * kind.size) for name, kind in (extra or {}).items()}
            writer.write(columns | (replace or {}))
    return folder
