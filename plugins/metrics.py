"""Counters, gauges and histograms for Prometheus, under the names that existing dashboards of LLM servers use.

Gauges are read when they are asked for, so they are true also when nothing runs.  Histograms are plain lists filled
once per step or once per request; ``prometheus_client`` only writes the page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ..core.messages import Emit, Finish, FinishReason, StepPlan, Submit

_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

#: Histograms by name: bounds and help.  Times are in seconds.
HISTOGRAMS: dict[str, tuple[tuple[float, ...], str]] = {
    "time_to_first_token_seconds": (_FIRST_TOKEN_S, "from the arrival of a request to its first token"),
    "inter_token_latency_seconds": (_TOKEN_S, "between two tokens of a request"),
    "request_time_per_output_token_seconds": (_TOKEN_S, "mean time per token after the first, of a request"),
    "e2e_request_latency_seconds": (_REQUEST_S, "from the arrival of a request to its end"),
    "request_queue_time_seconds": (_REQUEST_S, "from the arrival of a request until it is first scheduled"),
    "request_prefill_time_seconds": (_REQUEST_S, "from being scheduled to the first token"),
    "request_decode_time_seconds": (_REQUEST_S, "from the first token to the end"),
    "request_inference_time_seconds": (_REQUEST_S, "from being scheduled to the end"),
    "request_prompt_tokens": (_TOKENS, "tokens of a prompt"),
    "request_max_num_generation_tokens": (_TOKENS, "tokens that a request asked for at most"),
    "request_generation_tokens": (_TOKENS, "tokens generated for a request"),
    "iteration_tokens_total": (_STEP_TOKENS, "tokens computed in one step"),
}
#: Counters by name (written with ``_total`` at the end) and their help.
COUNTERS: dict[str, str] = {
    "prompt_tokens": "prompt tokens of ended requests",
    "prompt_tokens_cached": "of them found in the KV cache",
    "generation_tokens": "tokens generated",
    "prefix_cache_queries": "prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "prompt tokens found there",
    "num_preemptions": "times that a request lost its KV blocks and was computed again",
}


class Histogram:
    """Counts of values below ascending ``bounds``."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound."""
        out, count = [], 0
        for bound, here in zip((*map(float, self.bounds), float("inf")), self.counts, strict=True):
            count += here
            out.append(("+Inf" if bound == float("inf") else str(bound), float(count)))
        return out


class Metrics(Collector):
    """``stats`` are the engine's gauges and counters, ``gauges`` and ``counters`` those of whoever makes this: name ->
    (help, function)."""

    def __init__(
        self,
        prefix: str,
        model: str,
        stats: Callable[[], Mapping[str, float]],
        gauges: Mapping[str, tuple[str, Callable[[], float]]],
        counters: Mapping[str, tuple[str, Callable[[], float]]],
    ) -> None:
        self._prefix, self._model, self._stats = prefix, model, stats
        self._gauges, self._more_counters = gauges, counters
        self._histograms = {name: Histogram(bounds) for name, (bounds, _) in HISTOGRAMS.items()}
        self._counts: Counter[str] = Counter()
        self._ended: Counter[str] = Counter(dict.fromkeys(FinishReason, 0))
        self._refused: Counter[str] = Counter()
        self._last: dict[str, float] = {}  # when each running request had its latest token
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def on_submit(self, submit: Submit) -> None:
        self._histograms["request_max_num_generation_tokens"].observe(submit.sampling.max_tokens)

    def on_plan(self, plan: StepPlan) -> None:
        if plan.rows:
            self._histograms["iteration_tokens_total"].observe(sum(row.count for row in plan.rows))

    def on_emit(self, emit: Emit, now: float) -> None:
        """Book one step's news; ``now`` in clock seconds."""
        last, gaps, num_tokens = self._last, Counter[float](), 0
        for row in emit.rows:
            if row.token_ids:
                num_tokens += len(row.token_ids)
                if (before := last.get(row.rid)) is not None:
                    gaps[before] += len(row.token_ids)
                last[row.rid] = now
            if row.finish is not None:
                last.pop(row.rid, None)
                self._end(row.finish)
        self._counts["generation_tokens"] += num_tokens
        histogram = self._histograms["inter_token_latency_seconds"]
        for before, times in gaps.items():  # nearly all of a step had their latest token in the step before
            histogram.observe(now - before, times)

    def page(self) -> tuple[bytes, str]:
        """The text for a scrape, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterable[Metric]:
        """For the registry."""
        stats = self._stats()
        blocks = stats.get("kv_num_blocks", 0)
        usage = (stats.get("kv_used_blocks", 0) + stats.get("kv_fenced_blocks", 0)) / blocks if blocks else 0.0
        yield self._gauge("num_requests_running", "requests in the running set", stats.get("running", 0))
        yield self._gauge("num_requests_waiting", "requests that wait to be scheduled", stats.get("waiting", 0))
        yield self._gauge("kv_cache_usage_perc", "share of KV blocks in use, 0 to 1", usage)
        for name, (text, value) in self._gauges.items():
            yield self._gauge(name, text, value())
        for name, text in COUNTERS.items():
            yield self._counter(name, text, self._counts[name])
        for name, (text, value) in self._more_counters.items():
            yield self._counter(name, text, value())
        yield self._labelled("request_success", "ended requests", "finished_reason", self._ended)
        yield self._labelled("admission_rejections", "requests refused or failed, by code", "reason", self._refused)
        for name, (_, text) in HISTOGRAMS.items():
            family = HistogramMetricFamily(self._prefix + name, text, labels=["model_name"])
            histogram = self._histograms[name]
            family.add_metric([self._model], histogram.buckets(), histogram.total)
            yield family

    def _end(self, finish: Finish) -> None:
        self._ended[finish.reason] += 1
        if finish.failure is not None:
            self._refused[finish.failure.code] += 1
        usage, timing = finish.usage, finish.timing
        if timing.scheduled is None:
            return
        seen, counts, finished = self._histograms, self._counts, timing.finished
        counts["prompt_tokens"] += usage.input
        counts["prompt_tokens_cached"] += usage.cached
        counts["prefix_cache_queries"] += usage.input
        counts["prefix_cache_hits"] += usage.cached
        counts["num_preemptions"] += finish.num_preemptions
        seen["request_prompt_tokens"].observe(usage.input)
        seen["request_generation_tokens"].observe(usage.output)
        seen["request_queue_time_seconds"].observe(timing.scheduled - timing.arrival)
        if finished is not None:
            seen["e2e_request_latency_seconds"].observe(finished - timing.arrival)
            seen["request_inference_time_seconds"].observe(finished - timing.scheduled)
        if timing.first_token is not None:
            seen["time_to_first_token_seconds"].observe(timing.first_token - timing.arrival)
            seen["request_prefill_time_seconds"].observe(timing.first_token - timing.scheduled)
            if finished is not None:
                decode = finished - timing.first_token
                seen["request_decode_time_seconds"].observe(decode)
                if usage.output > 1:  # a single token has no time between tokens
                    seen["request_time_per_output_token_seconds"].observe(decode / (usage.output - 1))

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(self._prefix + name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _labelled(self, name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(self._prefix + name, text, labels=["model_name", label])
        for key, value in sorted(values.items()):
            family.add_metric([self._model, str(key)], value)
        return family
