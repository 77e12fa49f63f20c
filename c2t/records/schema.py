"""The format of a harvest on disk, a row per drafted node in shards of Parquet with a manifest, and of the data read
from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

from jaxtyping import Bool, Float, Int, UInt8
from pydantic import Field, with_config
from torch import Tensor
from typing_extensions import TypedDict

from c2t.storage.checked import EXTENSIBLE, OPEN, Positive

Count = Annotated[int, Field(ge=0)]
SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
REPLACED = ".replaced"  # marks the harvest that is being replaced; it remains if that is interrupted
METADATA = b"c2t"  # key of the JSON document in each shard's schema metadata


class ColumnType(NamedTuple):
    """Type of a column. dtype: of a value, by numpy's name. size: values in a row, None for a single one."""

    dtype: str
    size: int | None = None


COLUMNS = {
    "tree": ColumnType("uint32"),  # counted through the whole harvest
    "node": ColumnType("uint16"),  # creation order; the root has no row
    "parent": ColumnType("int16"),  # a node of the same tree; -1 = child of the root
    "depth": ColumnType("uint8"),
    "joint_prob": ColumnType("float32"),
    "entropy": ColumnType("float32"),
    "accepted": ColumnType("bool"),  # in MCSD+'s forks: would be accepted if its fork had been chosen
    "token": ColumnType("int32"),
    "rank": ColumnType("uint8"),
    "prompt": ColumnType("uint32"),  # index into the manifest's list of prompts
    "position": ColumnType("uint32"),  # of the round's root in its text
}


class Harvest(NamedTuple):
    """Facts about a complete harvest; `prompts` are the manifest's entries (question_id, category, file, ...)."""

    folder: Path
    rows: int
    trees: int
    positives: int
    prompts: list[dict[str, Any]]
    shards: dict[str, int]  # file name -> rows
    provenance: dict[str, Any]
    too_long: int | None = None  # prompts left out because they exceed the target's positions; None: not counted
    checksums: dict[str, str] | None = None  # file name -> SHA-256 of the shard; None in older ones


@with_config(EXTENSIBLE)
class HarvestProvenance(TypedDict):
    """Entries of a manifest's provenance that training reads; others stay as they are."""

    pair: str | None
    K: Positive | None
    levels: Positive | None
    M: Positive | None


@dataclass(frozen=True)
class Manifest:
    """Content of the manifest of a complete harvest: a Harvest without its folder.

    sha256: checksum of the rest; None in older ones."""

    __pydantic_config__ = OPEN
    schema_version: int
    rows: Count
    trees: Count
    positives: Count
    prompts: list[dict[str, Any]]
    shards: dict[str, Count]
    provenance: HarvestProvenance
    too_long: Count | None = None
    checksums: dict[str, str] | None = None
    sha256: str | None = None


@with_config(EXTENSIBLE)
class Shard(TypedDict):
    """Metadata of a shard. prompts, trees: the first number in it, and the first one after it. prompt_list: checksum
    of all prompts of the harvest. columns: their types by name. left_out: its too_long prompts."""

    schema_version: int
    rows: Count
    positives: Count
    prompts: Annotated[list[Count], Field(min_length=2, max_length=2)]
    trees: Annotated[list[Count], Field(min_length=2, max_length=2)]
    prompt_list: str
    columns: dict[str, str]
    provenance: HarvestProvenance
    too_long: NotRequired[Count]  # not in older ones
    left_out: NotRequired[list[Count]]  # not in older ones


class Records(NamedTuple):
    """Columns of harvested nodes as features read them; the prompts and trees of several harvests have different
    numbers."""

    log_joint: Float[Tensor, " n"]  # log of the joint probability; -inf where it underflows
    entropy: Float[Tensor, " n"]
    depth: UInt8[Tensor, " n"]
    accepted: Bool[Tensor, " n"]
    tree: Int[Tensor, " n"]
    prompt: Int[Tensor, " n"]
    top_probs: Float[Tensor, "n k"] | None = None
    hidden: Float[Tensor, "n H"] | None = None
    target: Float[Tensor, " n"] | None = None  # the node's own probability by the target
    log_prob: Float[Tensor, " n"] | None = None  # log of its own by the draft; NaN if not known
    max_log_prob: Float[Tensor, " n"] | None = None  # of its most probable sibling
    rank: UInt8[Tensor, " n"] | None = None
    parent_accepted: Bool[Tensor, " n"] | None = None  # its parent was accepted, or is the root
