"""The server's counters under vLLM's names, for programs that read those."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import Counter, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from c2t.batching import BatchDecoder
from c2t.costs.statistics import RoundCounts

if TYPE_CHECKING:
    from c2t.serving.metrics import Metrics

REASONS = {"stop": "stop", "length": "length", "abort": "cancelled", "error": "failed"}  # vLLM's -> outcomes
LABELS = ("model_name", "engine")


@dataclass
class DraftCounts:
    """Rounds that drafted, each counted for every request in it, their drafted tokens, and the accepted ones by
    depth."""

    drafts: int = 0
    drafted: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def add(self, row: RoundCounts) -> None:
        """Count one row of a round."""
        if row.verified > 1:
            self.drafts += 1
            self.drafted += row.verified - 1
        self.accepted_at += [0] * (row.accepted - len(self.accepted_at))  # forced tokens may go deeper than levels
        for depth in range(row.accepted):
            self.accepted_at[depth] += 1


class VllmNames(Collector):
    """Shows a server's `Metrics` once more. model: the name that it serves."""

    def __init__(self, metrics: "Metrics", decoder: BatchDecoder, model: str):
        self.metrics, self.decoder, self.labels = metrics, decoder, [model, "0"]

    def collect(self) -> Iterator[Metric]:
        """Yield what vLLM counts and c2t does, too."""
        metrics, drafts = self.metrics, self.metrics.drafts
        prompt = value_of(metrics.prompt_tokens)
        for name, what, value in (
            ("prompt_tokens", "Prompt tokens processed.", prompt),
            ("generation_tokens", "Tokens generated.", value_of(metrics.new_tokens)),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", prompt),
            ("prefix_cache_hits", "Prompt tokens that were in the prefix cache.", reused(self.decoder)),
            ("spec_decode_num_drafts", "Rounds that drafted, for each request.", drafts.drafts),
            ("spec_decode_num_draft_tokens", "Drafted tokens that were verified.", drafts.drafted),
            ("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", sum(drafts.accepted_at)),
        ):
            yield self._counter(name, what, {(): value})
        positions = {(str(depth),): count for depth, count in enumerate(drafts.accepted_at)}
        yield self._counter("spec_decode_num_accepted_tokens_per_pos", "The same by depth.", positions, ["position"])
        ended = {(reason,): value_of(metrics.requests.labels(outcome)) for reason, outcome in REASONS.items()}
        yield self._counter("request_success", "Requests that ended.", ended, ["finished_reason"])
        for state, requests in (("running", self.decoder.running), ("waiting", self.decoder.waiting)):
            gauge = GaugeMetricFamily(f"vllm:num_requests_{state}", f"Requests that are {state}.", labels=LABELS)
            gauge.add_metric(self.labels, requests)
            yield gauge
        yield self._first_token()

    def _counter(
        self, name: str, what: str, values: Mapping[tuple[str, ...], int | float], more: Sequence[str] = ()
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(f"vllm:{name}", what, labels=[*LABELS, *more])
        for labels, value in values.items():
            family.add_metric([*self.labels, *labels], value)
        return family

    def _first_token(self) -> HistogramMetricFamily:
        name, what = "vllm:time_to_first_token_seconds", "From a request to its first token."
        family = HistogramMetricFamily(name, what, labels=LABELS)
        [histogram] = self.metrics.first.collect()
        buckets = [(s.labels["le"], s.value) for s in histogram.samples if s.name.endswith("_bucket")]
        [seconds] = [s.value for s in histogram.samples if s.name.endswith("_sum")]
        family.add_metric(self.labels, buckets, seconds)
        return family


def value_of(counter: Counter) -> float:
    """Return the value of a counter without labels, or of one that has them."""
    [metric] = counter.collect()
    return next(sample.value for sample in metric.samples if sample.name.endswith("_total"))


def reused(decoder: BatchDecoder) -> int:
    """Return how many prompt tokens came from the prefix cache."""
    prefixes = decoder.pair.target.prefixes
    return prefixes.reused if prefixes else 0
