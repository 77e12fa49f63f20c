"""Files of a hostile writer who knows the formats: whole safetensors and Parquet with headers, schemas and values that
nobody expects, and no checksum that would give them away."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from c2t.records.schema import METADATA
from tests.hostile.mutations import damage_json

TYPES = (
    pa.string(),
    pa.binary(),
    pa.float16(),
    pa.float64(),
    pa.uint64(),
    pa.int8(),
    pa.bool_(),
    pa.date32(),
    pa.null(),
)
NUMBERS = (0, 1, -1, 255, 2**31 - 1, 2**31, 2**32 - 1, 1e38, -1e38, float("nan"), float("inf"))


def forge_header(data: bytes, random_: random.Random) -> bytes:
    """Return a safetensors file with a damaged header of the right length, or a wrong length."""
    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length], data[8 + length :]
    if random_.random() < 0.2:
        return random_.choice((0, 1, length - 1, len(data), 2**31, 2**63)).to_bytes(8, "little") + header + rest
    changed = damage_json(header.decode(), random_).encode("utf-8", "surrogatepass")
    return len(changed).to_bytes(8, "little") + changed + rest


def forge_table(table: pa.Table, random_: random.Random) -> pa.Table:
    """Return a shard's table with another schema, other values, other metadata or another number of rows."""
    place = random_.randrange(table.num_columns)
    name, column = table.column_names[place], table.column(place)
    kind = random_.choice((_retyped, _valued, _nulled, _wrapped, _encoded))
    if random_.random() < 0.2:
        text = damage_json(table.schema.metadata[METADATA].decode(), random_)
        return table.replace_schema_metadata({METADATA: text.encode("utf-8", "surrogatepass")})
    if random_.random() < 0.2:
        return random_.choice(
            (lambda: table.drop_columns([name]), lambda: table.append_column(name, column), lambda: table[:0])
        )()
    changed = kind(column.combine_chunks(), random_)
    return table.set_column(place, name, changed)


def _retyped(column: pa.Array, random_: random.Random) -> pa.Array:
    kind = random_.choice(TYPES)
    if kind == pa.null():
        return pa.nulls(len(column))
    try:
        return column.cast(kind, safe=False)
    except pa.ArrowException:
        return pa.array([str(value) for value in column.to_pylist()])


def _valued(column: pa.Array, random_: random.Random) -> pa.Array:
    values = column.to_numpy(zero_copy_only=False).copy()
    places = [random_.randrange(len(values)) for _ in range(random_.choice((1, 10, len(values))))]
    with np.errstate(all="ignore"):
        values[places] = np.array(random_.choice(NUMBERS)).astype(values.dtype)
    return pa.array(values, column.type)


def _nulled(column: pa.Array, random_: random.Random) -> pa.Array:
    return pa.array([None if random_.random() < 0.1 else value for value in column.to_pylist()], column.type)


def _wrapped(column: pa.Array, random_: random.Random) -> pa.Array:
    one = np.arange(len(column) + 1, dtype=np.int32)
    lists: list[Callable[[], pa.Array]] = [
        lambda: pa.ListArray.from_arrays(pa.array(one), column),
        lambda: pa.FixedSizeListArray.from_arrays(column, 1),
        lambda: pa.StructArray.from_arrays([column], ["value"]),
    ]
    return random_.choice(lists)()


def _encoded(column: pa.Array, random_: random.Random) -> pa.Array:
    return column.dictionary_encode()


def forge_file(path: Path, random_: random.Random) -> None:
    """Forge a file where it lies; the document that has its checksum becomes one of an older version, without."""
    if path.suffix == ".parquet":
        table = forge_table(pq.read_table(path), random_)
        rows = random_.choice((1, 7, 2**20))
        pq.write_table(table, path, row_group_size=rows, use_dictionary=random_.random() < 0.5)
    else:
        path.write_bytes(forge_header(path.read_bytes(), random_))
    for name in ("manifest.json", "config.json"):
        document = path.with_name(name)
        if document.exists():
            entries = json.loads(document.read_text())
            document.write_text(json.dumps({k: v for k, v in entries.items() if k not in ("sha256", "checksums")}))
