"""Result lines are added whole, also behind one that is not."""

import json
from pathlib import Path

from c2t.storage.results import append_line


def test_a_line_behind_a_torn_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    append_line(path, '{"a": 1}')
    append_line(path, '{"a": 2}')
    path.write_text(path.read_text() + '{"a": ')  # a process was killed here
    append_line(path, '{"a": 3}')
    lines = path.read_text().split("\n")
    assert lines == ['{"a": 1}', '{"a": 2}', '{"a": ', '{"a": 3}', ""]
    assert json.loads(lines[3]) == {"a": 3}
