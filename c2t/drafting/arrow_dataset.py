"""A dataset on disk as Hugging Face's `datasets` stores it (`save_to_disk`), read without that package.

state.json names the files; each is an Arrow stream of record batches, and their rows follow one another.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import error as NotInside
from struct import unpack_from
from typing import Any

import numpy as np
import pyarrow as pa

from c2t.errors import InputError, one_line
from c2t.storage.checked import from_json, read_file

STATE = "state.json"


def read_lists(folder: Path, names: Sequence[str]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the lists of whole numbers or truth values in these columns, row by row.

    InputError for a folder that is no such dataset, for a missing column, and for one of another type."""
    if not (folder / STATE).is_file():
        raise InputError(f"{folder} is no dataset on disk (no {STATE}): give the folder that prepare_data.py wrote")
    for file in files_of(folder):
        try:
            for batch in batches(file):
                columns = [column_of(batch, name, file) for name in names]
                yield from zip(*map(split, columns), strict=True)
        except (pa.ArrowException, OSError, ValueError, NotInside) as error:
            raise InputError(f"{file}: cannot be read as an Arrow stream ({one_line(error)})") from error


def files_of(folder: Path) -> list[Path]:
    """Return the files that state.json names, in order. InputError for names that lead elsewhere."""
    state = from_json(dict[str, Any], read_file(folder / STATE), folder / STATE)
    try:
        names = [entry["filename"] for entry in state["_data_files"]]
        if not all(Path(name).name == name for name in names):
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / STATE}: _data_files must be a list of files in this folder") from error
    for name in names:
        if not (folder / name).is_file():  # a pipe would be waited for
            raise InputError(f"{folder / name}, which {STATE} names, is no file: copy the whole folder")
    return [folder / name for name in names]


def batches(file: Path) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a stream; their numbers stay in the file. InputError for compressed ones, which say
    themselves how large they become."""
    with pa.memory_map(str(file)) as source:
        messages = iter(pa.ipc.MessageReader.open_stream(source))
        schema = None
        for message in messages:
            if message.type == "schema":
                schema = pa.ipc.read_schema(message)
            elif message.type != "record batch" or schema is None:
                raise ValueError(f"a {message.type} where rows should be")
            elif is_compressed(message):
                raise InputError(f"{file} is compressed, which datasets does not do: store it again by save_to_disk")
            else:
                yield pa.ipc.read_record_batch(message, schema)


def is_compressed(message: pa.ipc.Message) -> bool:
    """Return True for a record batch with a `compression`: field 3 of the RecordBatch that is field 2, the header, of
    Arrow's Message."""
    data = memoryview(message.metadata)

    def position(table: int, field: int) -> int:
        vtable = table - unpack_from("<i", data, table)[0]
        entry = 4 + 2 * field  # after the sizes of both tables
        inside = unpack_from("<H", data, vtable + entry)[0] if entry < unpack_from("<H", data, vtable)[0] else 0
        return table + inside if inside else 0

    header = position(unpack_from("<I", data)[0], 2)
    return position(header + unpack_from("<I", data, header)[0], 3) > 0


def column_of(batch: pa.RecordBatch, name: str, file: Path) -> pa.ListArray:
    """Return a column, its offsets checked."""
    number = batch.schema.get_field_index(name)
    if number < 0:
        raise InputError(f"{file} has no column {name}, or two: its rows need input_ids and loss_mask")
    column, kind = batch.column(number), batch.schema.field(number).type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not lists or not (pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type)):
        raise InputError(f"{file}: the column {name} holds {kind}, not lists of whole numbers")
    column.validate(full=True)
    if column.null_count or column.flatten().null_count:
        raise InputError(f"{file}: the column {name} has missing values")
    return column


def split(column: pa.ListArray) -> list[np.ndarray]:
    """Return the list of each row."""
    if not len(column):
        return []
    ends = column.value_lengths().to_numpy(zero_copy_only=False).cumsum()
    return np.split(column.flatten().to_numpy(zero_copy_only=False), ends[:-1])
