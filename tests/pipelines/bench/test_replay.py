"""Where the time of a harvest goes: every stage is seen, and stages add up."""

from itertools import count

import pytest

from c2t.models.pairs import load_pair
from c2t.policies import Eagle2
from pipelines.bench import replay
from pipelines.bench.replay import MATCHING, TARGET, measure, ways
from pipelines.stages import FORWARD, SELECT, TREES
from tests.rounding import figure


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, replay.Run]:
    """By a clock that ticks when it is read: a stage without stages within takes a tick a call."""
    monkeypatch.setattr(replay, "POLICY", Eagle2(3, 3, None, 50))
    monkeypatch.setattr(replay, "NEW_TOKENS", 8)
    pair, ticks = load_pair("tiny"), count()
    ids = [pair.tokenizer("def f(x):\n").input_ids, pair.tokenizer("import os\n").input_ids]
    return {name: measure(pair, name, way, lambda: float(next(ticks))) for name, way in ways(pair, ids).items()}


def test_top_k_is_seen_in_every_way(runs: dict[str, replay.Run]) -> None:
    for run in runs.values():
        assert set(run.shares) == {TARGET, FORWARD, SELECT, TREES} | (set() if "live" in run.name else {MATCHING})
        assert sum(run.shares.values()) == figure(1)
        ticks = {stage: round(share * run.seconds) for stage, share in run.shares.items()}
        rounds = ticks[SELECT] / 3  # a level each
        assert rounds == int(rounds) > 0
        assert run.rows % (3 + 2 * 9) == 0  # full trees
        if "live" not in run.name:
            assert ticks[TARGET] == 1  # the texts are written once
