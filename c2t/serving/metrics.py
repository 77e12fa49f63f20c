"""Counters for Prometheus: requests, tokens, rounds, and tokens a round."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from c2t.batching import Update
from c2t.costs.statistics import counts_of
from c2t.decoding import Step
from c2t.serving.front import AsyncFront, Watch
from c2t.serving.vllm_metrics import DraftCounts, VllmNames, reused, value_of

OUTCOMES = ("stop", "length", "cancelled", "failed", "refused", "full")
SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)  # bounds of the histogram's buckets


class Metrics(Watch):
    """Counters of one server, in a registry of their own."""

    def __init__(self):
        self.registry, self.drafts = CollectorRegistry(), DraftCounts()
        registry = {"registry": self.registry}
        self.requests = Counter("c2t_requests", "Requests by how they ended.", ["outcome"], **registry)
        for outcome in OUTCOMES:  # shown from the start, as 0
            self.requests.labels(outcome)
        self.prompt_tokens = Counter("c2t_prompt_tokens", "Tokens of accepted requests' prompts.", **registry)
        self.new_tokens = Counter("c2t_new_tokens", "Tokens generated.", **registry)
        self.rounds = Counter("c2t_rounds", "Rounds, each counted once for every request in it.", **registry)
        self.accepted = Counter("c2t_accepted_tokens", "Drafted tokens that the target accepted.", **registry)
        self.verified = Counter("c2t_verified_tokens", "Tokens that the target verified, roots included.", **registry)
        self.busy = Counter("c2t_busy_seconds", "Seconds of running rounds.", **registry)
        self.first = Histogram(
            "c2t_time_to_first_token_seconds", "From a request to its first token.", buckets=SECONDS, **registry
        )
        self._mean("c2t_tau", "Accepted drafted tokens a round.", self.accepted, self.rounds)
        self._mean("c2t_gamma", "Verified tokens a round.", self.verified, self.rounds)
        self._mean("c2t_tokens_per_second", "Tokens generated per second of decoding.", self.new_tokens, self.busy)

    def watch(self, front: AsyncFront, model: str | None = None) -> None:
        """Show how many requests run and wait, how many prompt tokens were reused, and vLLM's names of everything.

        model: the name that is served, by default the pair's.
        """
        decoder = front.decoder
        self._gauge("c2t_requests_running", "Requests that are being decoded.", lambda: decoder.running)
        self._gauge("c2t_requests_waiting", "Requests that wait for a row.", lambda: decoder.waiting)
        self._gauge("c2t_prompt_tokens_reused", "Prompt tokens that were not computed again.", lambda: reused(decoder))
        self.drafts.accepted_at = [0] * decoder.policy.levels
        self.registry.register(VllmNames(self, decoder, model or decoder.pair.name))

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def stepped(self, updates: Sequence[Update], step: Step | None, seconds: float) -> None:
        """See `Watch`."""
        self.busy.inc(seconds)
        self.new_tokens.inc(sum(len(update.tokens) for update in updates))
        for row in counts_of(step) if step else ():
            self.rounds.inc()
            self.accepted.inc(row.accepted)
            self.verified.inc(row.verified)
            self.drafts.add(row)

    def began(self, seconds: float) -> None:
        """See `Watch`."""
        self.first.observe(seconds)

    def ended(self, outcome: str) -> None:
        """See `Watch`; also "refused" and "full", of requests that the front never had."""
        self.requests.labels(outcome).inc()

    def _mean(self, name: str, what: str, sums: Counter, counts: Counter) -> None:
        """Show the ratio of two counters, since the server has been started."""

        def ratio() -> float:
            count = value_of(counts)
            return value_of(sums) / count if count else 0.0

        self._gauge(name, what, ratio)

    def _gauge(self, name: str, what: str, value: Callable[[], float]) -> None:
        Gauge(name, what, registry=self.registry).set_function(value)
