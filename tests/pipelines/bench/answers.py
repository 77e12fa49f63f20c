"""What the processes of every other program must answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from pipelines.bench.contenders import Task
from pipelines.bench.programs import Program


def answered(
    ways: Mapping[str, Sequence[Program]], plain_of: Callable[[str], str | None], task: Task
) -> Iterator[tuple[Program, Program]]:
    """Check each way's settings and texts; yield it with plain decoding of the same weights."""
    for name, rivals in ways.items():
        settings = [way.setting for way in rivals]
        assert len(set(settings)) == len(settings)
        [plain] = ways[plain_of(name)]
        expected = plain.write([[1, 2, 1, 2]], [0], task)
        assert expected.rounds == expected.new - 1
        for way in rivals:
            written = way.write([[1, 2, 1, 2]], [0], task)
            assert written.tokens == expected.tokens
            assert 0 < written.first < written.seconds
            yield way, plain
