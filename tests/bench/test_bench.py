"""The load generator: what it draws, what it measures, and runs against real sockets."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.errors import ConfigError
from mainspring.plugins.bench.arrivals import CANCEL, PLAIN, SLOW, Job, Load, draw, read_trace
from mainspring.plugins.bench.native import NativeTarget
from mainspring.plugins.bench.openai_http import OpenAITarget
from mainspring.plugins.bench.report import Seen, parse_slo, spread, summary
from mainspring.plugins.bench.run import play
from mainspring.plugins.bench.sse import SseReader
from mainspring.plugins.cli.bench import BenchCommand, show

from ..gateways.fakes import serve


def test_arrivals_are_repeatable_and_have_the_asked_rate_and_mix() -> None:
    load = Load(num_requests=4000, rate=50, slow=0.1, cancel=0.2, max_tokens=7, prompt_words=3)
    jobs = draw(load)
    assert jobs == draw(load) != draw(load._replace(seed=1))
    assert jobs[-1].at == pytest.approx(4000 / 50, rel=0.05)
    gaps = [later.at - sooner.at for sooner, later in itertools.pairwise(jobs)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert deviation / mean == pytest.approx(1, rel=0.1)  # Poisson
    share = {kind: sum(job.kind == kind for job in jobs) / 4000 for kind in (SLOW, CANCEL, PLAIN)}
    assert share == pytest.approx({SLOW: 0.1, CANCEL: 0.2, PLAIN: 0.7}, abs=0.03)
    assert {len(job.prompt.split()) for job in jobs} == {3}


def test_bursty_ramped_and_immediate_arrivals() -> None:
    bursty = draw(Load(num_requests=4000, rate=50, burstiness=0.25))
    gaps = [later.at - sooner.at for sooner, later in itertools.pairwise(bursty)]
    mean = sum(gaps) / len(gaps)
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean == pytest.approx(2, rel=0.2)
    ramp = draw(Load(num_requests=2000, rate=10, ramp_to=100))
    assert ramp[999].at > 2 * (ramp[-1].at - ramp[999].at)
    assert {job.at for job in draw(Load(num_requests=5))} == {0.0}


def test_a_trace_gives_arrivals_and_lengths(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows = [(4000, 5, 6), (2000, 3, 4), (9000, 1, 1)]
    file.write_text("\n".join(json.dumps({"timestamp": t, "input_length": i, "output_length": o}) for t, i, o in rows))
    jobs = read_trace(file, Load(num_requests=2), speed=2)
    assert [(job.at, len(job.prompt.split()), job.max_tokens) for job in jobs] == [(0, 3, 4), (1, 5, 6)]
    file.write_text('{"timestamp": 1}')
    with pytest.raises(ConfigError, match=r"trace.jsonl:1: needs timestamp"):
        read_trace(file, Load())
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none", Load())


def seen(due: float, first: float, ended: float, tokens: int, **fields: Any) -> Seen:
    return Seen(due, fields.pop("kind", PLAIN), first=first, ended=ended, num_tokens=tokens, **fields)


def test_figures_by_hand() -> None:
    """E-04: TTFT counts from when a request was due; one token has no TPOT; a delta of n tokens is n gaps."""
    one = Seen(10.0, PLAIN)
    one.delta(10.5, 1)
    one.delta(10.9, 4)
    one.ended = 10.9
    assert [one.latency(name) for name in ("ttft", "tpot", "e2e")] == pytest.approx([0.5, 0.1, 0.9])
    assert one.gaps[0] == pytest.approx((0.4, 4))
    report = summary(
        [one, seen(0, 0.1, 0.1, 1), seen(0, 0.1, 9, 5, kind=SLOW), Seen(0, PLAIN, error="queue_full")],
        2.0,
        [0.001, 0.003],
        {"ttft": 200, "tpot": 150},
    )
    assert (report["requests"], report["completed"], report["failures"]) == (4, 3, {"queue_full": 1})
    assert (report["output_tokens"], report["output_tokens_per_s"]) == (11, 5.5)
    assert report["ttft_ms"]["max"] == 500.0
    assert report["tpot_ms"]["mean"] == 100.0
    assert report["itl_ms"]["p50"] == 100.0
    assert report["own_lag_ms"]["max"] == 3.0
    assert (report["goodput_share"], report["goodput_per_s"]) == (0.3333, 0.5)
    assert spread([]) is None


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5)), min_size=1, max_size=50))
def test_percentiles_are_those_of_the_values_written_out(weighted: list[tuple[float, int]]) -> None:
    values = sorted(value for value, weight in weighted for _ in range(weight))
    figures = spread(weighted)
    assert figures is not None
    for percent in (50, 99):
        expected = values[math.ceil(len(values) * percent / 100) - 1] * 1e3
        assert figures[f"p{percent}"] == pytest.approx(expected, abs=1e-3)


def test_slo_words() -> None:
    assert parse_slo(["ttft:200", "e2e:1500.5"]) == {"ttft": 200, "e2e": 1500.5}
    for wrong, why in (
        ("tttf:1", "did you mean 'ttft'"),
        ("ttft", "expected ttft:MILLISECONDS"),
        ("ttft:x", "expected"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_slo([wrong])


@pytest.mark.anyio
async def test_a_run_over_the_native_protocol_with_slow_readers_and_cancellers() -> None:
    async with serve(token_s=0.001) as served:
        jobs = [Job(0.002 * number, "a b", 20, (PLAIN, SLOW, CANCEL)[number % 3]) for number in range(12)]
        jobs = [job._replace(max_tokens=10**6) if job.kind == CANCEL else job for job in jobs]
        target = NativeTarget(served.url, 3, None, {"ignore_eos": True})
        report = await play(target, jobs, {"ttft": 60_000}, 30)
        assert (report["completed"], report["failures"], report["cancelled"], report["slow_readers"]) == (12, {}, 4, 4)
        assert report["goodput_share"] == 1.0
        assert report["ttft_ms"]["mean"] > 0
        assert all(request.ignore_eos for request in served.text.requests)
        await served.text.until_live(0)


@pytest.mark.anyio
async def test_failures_and_timeouts_are_counted_by_their_code() -> None:
    async with serve() as served:
        jobs = [Job(0, "refuse", 1, PLAIN), Job(0, "hold", 1, PLAIN), Job(0, "fine", 1, PLAIN)]
        report = await play(NativeTarget(served.url, 1, None, {}), jobs, {}, 0.3)
        assert report["failures"] == {"queue_full": 1, "timeout": 1}
        with pytest.raises(ConfigError, match="--url: cannot connect"):
            await play(NativeTarget("ws://127.0.0.1:1", 1, None, {}), jobs, {}, 1)


EVENTS = [
    {"choices": [{"text": "a", "finish_reason": None}]},
    {"choices": [{"text": "b", "finish_reason": "length"}]},
    {"choices": [], "usage": {"completion_tokens": 2}},
]
STREAM = b"".join(b"data: " + json.dumps(event).encode() + b"\r\n\r\n" for event in EVENTS) + b"data: [DONE]\n\n"


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(f"{len(piece):x};x=1\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"


ANSWERS: list[Callable[[], bytes]] = [
    lambda: http(chunked(STREAM, 7), "Content-Type: text/event-stream", "Transfer-Encoding: chunked"),
    lambda: http(STREAM, "content-type: text/event-stream; charset=utf-8"),
    lambda: http(STREAM, "Content-Type: text/event-stream", f"Content-Length: {len(STREAM)}"),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_events_are_read_byte_by_byte(answer: Callable[[], bytes]) -> None:
    reader, lines = SseReader(), []
    for byte in answer():
        lines += reader.feed(bytes([byte]))
    assert (reader.status, [json.loads(line) for line in lines[:-1]], lines[-1]) == (200, EVENTS, b"[DONE]")
    whole = SseReader()
    assert whole.feed(answer()) == lines
    assert whole.done == reader.done == (answer is not ANSWERS[1])


@contextlib.asynccontextmanager
async def http_server(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answers every request with the same bytes; yields its URL and the requests."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            requests.append(head + await reader.readexactly(size))
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", requests


@pytest.mark.anyio
@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_run_against_an_openai_compatible_server(answer: Callable[[], bytes]) -> None:
    async with http_server(answer()) as (url, requests):
        jobs = [Job(0, "a b c", 2, PLAIN), Job(0, "d", 2, PLAIN)]
        report = await play(OpenAITarget(url, "m", "sk-key", {"ignore_eos": True}), jobs, {"ttft": 60_000}, 10)
        assert (report["completed"], report["output_tokens"], report["failures"]) == (2, 4, {})
        assert b"Authorization: Bearer sk-key" in requests[0]
        body = json.loads(requests[0].partition(b"\r\n\r\n")[2])
        assert (body["model"], body["prompt"], body["stream"], body["ignore_eos"]) == ("m", "a b c", True, True)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (http(b'{"error":{}}', "Content-Type: application/json", status="429 Too Many"), "http_429"),
        (http(b'data: {"error":{"code":"boom"}}\n\n', "Content-Type: text/event-stream"), "boom"),
        (http(b'data: {"choices":[{"text":"a"}]}\n\n', "Content-Type: text/event-stream"), "cut"),
        (b"", "http_None"),
    ],
)
async def test_what_such_a_server_gets_wrong_is_a_failure(answer: bytes, code: str) -> None:
    """E1: a stream that just stops is not a success."""
    async with http_server(answer) as (url, _):
        report = await play(OpenAITarget(url, "m", None, {}), [Job(0, "x", 1, PLAIN)], {}, 10)
        assert report["failures"] == {code: 1}


def command(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    BenchCommand().arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--url", "ftp://x"], "expected ws, wss, http or https"),
        (["--url", "ws://x", "--rate", "0"], "--rate 0.0: must be above 0"),
        (["--url", "ws://x", "--requests", "0"], "--requests 0: must be above 0"),
    ],
)
def test_wrong_arguments_are_named(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        BenchCommand().run(command(*words))


def test_the_report_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    show(summary([seen(0, 0.1, 0.2, 2)], 1.0, [0.0], {"ttft": 200}))
    shown = capsys.readouterr().out
    assert "ttft_ms" in shown
    assert "goodput_share" in shown
    assert "P99" in shown


@pytest.mark.anyio
async def test_the_command_saves_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serve() as served:
        file = tmp_path / "report.json"
        words = ["--url", served.url, "--requests", "5", "--max-tokens", "3", "--save", str(file), "--json"]
        assert await asyncio.to_thread(BenchCommand().run, command(*words)) == 0
        assert json.loads(file.read_text())["completed"] == 5
        assert '"requests": 5' in capsys.readouterr().out
