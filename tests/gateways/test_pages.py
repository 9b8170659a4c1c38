"""What plain GET requests get: models and metrics (health and readiness are in ``test_door``)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mainspring.core.messages import Emit, EmitRow, Failure, Finish, FinishReason, Row, StepPlan, Timing, Usage
from mainspring.plugins.metrics import COUNTERS, HISTOGRAMS, Metrics

from .fakes import collect, generate, serve

pytestmark = pytest.mark.anyio
GET = "GET {} HTTP/1.1\nHost: localhost\n"


def values(page: str) -> dict[str, float]:
    """Samples by name and labels as they are written, without the model's name."""
    out = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = [f"{key}={value}" for key, value in sample.labels.items() if key != "model_name"]
            assert sample.labels["model_name"]
            out[" ".join([sample.name, *labels])] = sample.value
    return out


async def test_models_are_listed_and_described() -> None:
    async with serve(model_aliases=("gpt-4o", "org/other model")) as served:
        status, headers, body = await served.http(GET.format("/v1/models"))
        listed = json.loads(body)
        assert (status, listed["object"], headers["content-type"]) == (200, "list", "application/json")
        assert [card["id"] for card in listed["data"]] == ["tiny", "gpt-4o", "org/other model"]
        assert {card["object"] for card in listed["data"]} == {"model"}
        assert listed["data"][0]["max_model_len"] == 2048
        for path in ("tiny", "gpt-4o", "org/other%20model"):
            assert (await served.http(GET.format("/v1/models/" + path)))[0] == 200
        status, _, body = await served.http(GET.format("/v1/models/none"))
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")


async def test_metrics_follow_what_happens() -> None:
    """E-05: gauges are read when asked, so they are true when nothing runs."""
    async with serve(metrics_prefix="vllm:") as served:
        before = values((await served.http(GET.format("/metrics")))[2])
        assert before["vllm:connections"] == 0
        async with served.client() as ws:
            await generate(ws, "a", max_tokens=2)
            await collect(ws, "a")
            status, headers, page = await served.http(GET.format("/metrics"))
            assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
            during = values(page)
            assert during["vllm:connections"] == 1
            served.port.figures = {"running": 3, "waiting": 2, "kv_num_blocks": 10, "kv_used_blocks": 4}
            full = values((await served.http(GET.format("/metrics")))[2])
            assert (full["vllm:num_requests_running"], full["vllm:num_requests_waiting"]) == (3, 2)
            assert full["vllm:kv_cache_usage_perc"] == pytest.approx(0.4)
        assert re.fullmatch(r"mainspring/.+", headers["server"])


def finish(reason: FinishReason, arrival: float, output: int, **times: float) -> Finish:
    code = Failure("queue_full", "full") if reason is FinishReason.ERROR else None
    return Finish(reason, Usage(8, 4, output), Timing(arrival, **times), failure=code, num_preemptions=output)


def test_e03_each_request_counts_once_and_e04_with_its_real_times() -> None:
    """E-03, E-04."""
    metrics = Metrics("x:", "tiny", dict, {}, {})
    metrics.on_plan(StepPlan(1, (Row("r", 0, 8, None, True), Row("s", 0, 24, None, True))))
    metrics.on_plan(StepPlan(2, ()))  # only releases
    metrics.on_emit(Emit(-1, (EmitRow("r"), EmitRow("s"))), 0.0)
    metrics.on_emit(Emit(1, (EmitRow("r", (1,)), EmitRow("s", (1,)))), 0.12)
    done = finish(FinishReason.LENGTH, 0.0, 3, scheduled=0.02, first_token=0.12, finished=0.16)
    metrics.on_emit(Emit(2, (EmitRow("r", (2,)),)), 0.14)
    metrics.on_emit(Emit(3, (EmitRow("r", (3,), done),)), 0.16)
    metrics.on_emit(Emit(-1, (EmitRow("s", (), finish(FinishReason.CANCELLED, 0.0, 1, scheduled=0.02)),)), 0.2)
    metrics.on_emit(Emit(-1, (EmitRow("t", (), finish(FinishReason.ERROR, 0.2, 0, finished=0.2)),)), 0.2)
    page = metrics.page()[0].decode()
    seen = values(page)
    assert seen["x:time_to_first_token_seconds_count"] == 1
    assert seen["x:time_to_first_token_seconds_sum"] == pytest.approx(0.12)
    assert seen["x:inter_token_latency_seconds_count"] == 2
    assert seen["x:inter_token_latency_seconds_sum"] == pytest.approx(0.04)
    assert seen["x:inter_token_latency_seconds_bucket le=0.01"] == 0
    assert seen["x:inter_token_latency_seconds_bucket le=0.025"] == 2
    assert seen["x:inter_token_latency_seconds_bucket le=+Inf"] == 2
    assert seen["x:request_time_per_output_token_seconds_sum"] == pytest.approx(0.02)
    assert seen["x:e2e_request_latency_seconds_sum"] == pytest.approx(0.16)
    assert seen["x:generation_tokens_total"] == 4
    assert seen["x:prompt_tokens_total"] == 16
    assert seen["x:prefix_cache_hits_total"] == 8
    assert seen["x:num_preemptions_total"] == 4
    assert {reason: seen[f"x:request_success_total finished_reason={reason}"] for reason in FinishReason} == {
        "stop": 0, "length": 1, "cancelled": 1, "deadline": 0, "error": 1,
    }  # fmt: skip
    assert seen["x:admission_rejections_total reason=queue_full"] == 1
    assert seen["x:iteration_tokens_total_sum"] == 32
    assert metrics._last == {}


DASHBOARD = [
    "e2e_request_latency_seconds_bucket",
    "generation_tokens_total",
    "inter_token_latency_seconds_bucket",
    "kv_cache_usage_perc",
    "num_requests_running",
    "num_requests_waiting",
    "prompt_tokens_total",
    "request_decode_time_seconds_sum",
    "request_generation_tokens_bucket",
    "request_max_num_generation_tokens_sum",
    "request_prefill_time_seconds_sum",
    "request_prompt_tokens_bucket",
    "request_queue_time_seconds_sum",
    "request_success_total",
    "request_time_per_output_token_seconds_bucket",
    "time_to_first_token_seconds_bucket",
]


def test_names_fit_existing_dashboards() -> None:
    page = Metrics("vllm:", "tiny", dict, {}, {}).page()[0].decode()
    for name in DASHBOARD:
        assert f"\nvllm:{name}{{" in page, name


def test_every_figure_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
    table = page.partition("## Metrics")[2].partition("\n## ")[0]
    told = set(
        re.findall(r"`([a-z0-9_]+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if "|" in line))
    )
    gauges = {"connections", "requests_queued_in_gateway", "requests_paused", "streams_retained", "kv_cache_usage_perc"}
    gauges |= {"num_requests_running", "num_requests_waiting"}
    counters = {f"{name}_total" for name in (*COUNTERS, "request_success", "admission_rejections", "ws_slow_closed")}
    assert told == gauges | counters | set(HISTOGRAMS)
