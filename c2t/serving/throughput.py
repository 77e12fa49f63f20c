"""A line of throughput in the log, every ten seconds while requests are decoded."""

import time
from collections.abc import Callable

from c2t.serving.front import AsyncFront
from c2t.serving.metrics import Metrics
from c2t.serving.vllm_metrics import value_of

EVERY = 10.0  # seconds


class Throughput:
    """Lines about a server, each about the time since the one before it."""

    def __init__(self, metrics: Metrics, front: AsyncFront, clock: Callable[[], float] = time.monotonic):
        self.counters = metrics.new_tokens, metrics.prompt_tokens, metrics.accepted, metrics.rounds
        self.decoder, self.clock = front.decoder, clock
        self.since, self.counted = clock(), [0.0] * len(self.counters)

    def line(self) -> str | None:
        """Return the next line, EVERY seconds after the one before it; None earlier, and after rest."""
        now = self.clock()
        if now - self.since < EVERY:
            return None
        seconds, self.since = now - self.since, now
        counted = [value_of(counter) for counter in self.counters]
        new, prompt, accepted, rounds = (after - before for after, before in zip(counted, self.counted, strict=True))
        self.counted = counted
        if not new and not prompt:
            return None
        speeds = f"{new / seconds:.1f} new tokens/s, {prompt / seconds:.1f} prompt tokens/s"
        length = f"acceptance length {1 + accepted / rounds:.2f}" if rounds else "no round"
        return f"{speeds}, {length}; running: {self.decoder.running}, waiting: {self.decoder.waiting}"
