"""Readers of recorded traffic: what they keep, what they drop and count, and how they name what is wrong."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring.core.errors import ConfigError
from mainspring.plugins.traces.canonical import FIRST_ID, Provenance, Trace, TraceRow, encode, prompt_ids
from mainspring.plugins.traces.formats import FORMATS, read, reader_of

DATA = Path(__file__).parents[1] / "data" / "traces"


def test_every_format_has_its_reader() -> None:
    for name in FORMATS:
        assert callable(reader_of(name)), name


@pytest.mark.parametrize(
    ("kind", "file", "options", "rows", "mean_in", "mean_out"),
    [
        ("azure", "AzureLLMInferenceTrace_code.first40min.csv.gz", {}, 7491, 2040, 28),
        ("azure", "AzureLLMInferenceTrace_conv.first40min.csv.gz", {}, 14176, 1195, 201),
        ("vtc", "vtc/FCFS_all_results_real.jsonl.gz", {}, 1500, 136, 256),
        ("vllm_timed", "calibration/RTXPRO6000_Llama-3.1-8B.requests.jsonl.gz", {}, 300, 857, 653),
        ("mooncake", "synthetic_trace.jsonl.gz", {}, 3993, 15325, 149),
        ("sharegpt", "sharegpt_lengths.csv", {"rate_per_s": 4.0}, 400, 2340, 439),
    ],
)
def test_published_figures(
    kind: str,
    file: str,
    options: dict[str, Any],
    rows: int,
    mean_in: float,
    mean_out: float,
) -> None:
    trace = read(kind, DATA / file, **options)
    close = 0.1 if kind == "sharegpt" else 0.003  # 400 of its 30,731 rows
    assert len(trace.rows) == trace.provenance.rows_kept == rows
    assert sum(row.input_tokens for row in trace.rows) / rows == pytest.approx(mean_in, rel=close)
    assert sum(row.output_tokens for row in trace.rows) / rows == pytest.approx(mean_out, rel=close, abs=0.5)
    assert trace.rows[0].arrival_s == 0
    assert [row.arrival_s for row in trace.rows] == sorted(row.arrival_s for row in trace.rows)
    assert len(trace.provenance.sha256) == 64


def test_azure_times_keep_their_seven_digits() -> None:
    first, second = read("azure", DATA / "AzureLLMInferenceTrace_conv.first40min.csv.gz", limit=2).rows
    assert second.arrival_s - first.arrival_s == pytest.approx(50.995169 - 46.68059, abs=5e-8)
    assert (first.input_tokens, first.output_tokens) == (374, 44)


def test_arena_has_its_clients() -> None:
    rows = read("vtc", DATA / "vtc/VTC_all_results_real.jsonl.gz").rows
    assert len({row.tenant for row in rows}) == 27
    assert rows[-1].arrival_s == pytest.approx(600, abs=1)


def test_mooncake_jitter_leaves_the_grid_and_is_repeatable() -> None:
    plain = read("mooncake", DATA / "conversation_trace.first40min.jsonl.gz", limit=200)
    spread = read("mooncake", DATA / "conversation_trace.first40min.jsonl.gz", limit=200, jitter_s=3.0, seed=1)
    assert len({row.arrival_s for row in plain.rows}) < 50 < len({row.arrival_s for row in spread.rows})
    assert spread == read("mooncake", DATA / "conversation_trace.first40min.jsonl.gz", limit=200, jitter_s=3.0, seed=1)
    assert {row.prefix_blocks[0] for row in plain.rows} == {0}
    assert plain.provenance.dropped == {"beyond the limit": 7651}


def test_weka_sessions_are_closed_loops_with_sub_agents() -> None:
    trace = read("weka", DATA / "weka_4_sessions.jsonl.gz", think_cap_s=20.0, seed=3)
    rows = trace.rows
    assert len({row.session for row in rows}) == 4
    roots = [row for row in rows if row.parent is None]
    assert len(roots) == 4
    assert all(row.delay_s <= 20 for row in rows)
    joins = [row for row in rows if row.after]
    assert joins  # the request behind the sub-agent waits for it
    assert all(rows[parent].session == row.session for row in rows for parent in row.parents)
    shared = [set(row.prefix_blocks) for row in roots]
    assert set.intersection(*shared)  # tools and system prompt
    alone = read("weka", DATA / "weka_4_sessions.jsonl.gz", shared_prefix=False, seed=3).rows
    first, *others = [set[int](row.prefix_blocks) for row in alone if row.parent is None]
    assert not first & set[int]().union(*others)
    small = read("weka", DATA / "weka_4_sessions.jsonl.gz", divide=8, seed=3).rows
    assert sum(row.input_tokens for row in small) == pytest.approx(sum(r.input_tokens for r in rows) / 8, rel=0.01)


def test_servegen_draws_rates_and_lengths_of_its_clients() -> None:
    path = DATA / "servegen_m-mid_4_clients.tar.gz"
    trace = read("servegen", path, start_s=914_400.0, duration_s=1200.0, rate_per_s=2.0, seed=5)
    assert trace == read("servegen", path, start_s=914_400.0, duration_s=1200.0, rate_per_s=2.0, seed=5)
    assert trace != read("servegen", path, start_s=914_400.0, duration_s=1200.0, rate_per_s=2.0, seed=6)
    assert len(trace.rows) == pytest.approx(2400, rel=0.15)
    counts = {tenant: sum(row.tenant == tenant for row in trace.rows) for tenant in ("14", "16")}
    assert sum(counts.values()) == len(trace.rows)  # the two that were active
    assert counts["14"] / len(trace.rows) == pytest.approx(23.3 / (23.3 + 13.1), abs=0.1)
    assert max(row.arrival_s for row in trace.rows) < 1200


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"


def test_burstgpt_by_name_of_column(tmp_path: Path) -> None:
    v1, v3 = tmp_path / "v1.csv", tmp_path / "v3.csv"
    v1.write_text(
        BURST + "45,ChatGPT,1087,230,1317,API log\n118,GPT-4,417,276,693,API log\n120,ChatGPT,100,0,100,API log\n"
    )
    v3.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,s1,2,ChatGPT,472,18,490,Conversation log\n"
    )
    trace = read("burstgpt", v1)
    assert [(row.arrival_s, row.input_tokens, row.output_tokens) for row in trace.rows] == [
        (0, 472, 18),
        (40, 1087, 230),
        (113, 417, 276),
    ]
    assert trace.provenance.dropped == {"no output tokens": 1}
    only = read("burstgpt", v1, model="ChatGPT", log_type="API log")
    assert len(only.rows) == 1
    assert only.provenance.dropped == {"another model or log type": 2, "no output tokens": 1}
    row = read("burstgpt", v3, session_column="Session ID").rows[0]
    assert (row.input_tokens, row.session) == (472, "s1")


def test_vllm_timed_trace_with_block_ids(tmp_path: Path) -> None:
    file = tmp_path / "timed.jsonl"
    lines = [{"timestamp": 1000 + 500 * n, "input_length": 40, "output_length": 4, "hash_ids": [7, n]} for n in (1, 2)]
    file.write_text("\n".join(map(json.dumps, lines)))
    rows = read("vllm_timed", file, block_tokens=32).rows
    assert [row.arrival_s for row in rows] == [0, 0.5]
    assert rows[1].prefix_blocks == (7, 2) and rows[1].block_tokens == 32


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("azure", "TIMESTAMP,ContextToken,GeneratedTokens\n", "line 1: there is no column 'ContextTokens'"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2: TIMESTAMP = 'yesterday'"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1,many,1\n", "line 2: ContextTokens"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1,1\n", "line 2: 2 cells"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
        ("burstgpt", BURST.replace("Response tokens", "Answer tokens"), "'Response tokens'"),
        ("mooncake", '{"timestamp": 1}\n', "line 1"),
        ("vllm_timed", '{"input": 1}\n', "line 1: neither timestamp nor input_toks"),
        ("weka", '{"id": "a"}\n', "line 1"),
        ("vtc", "[]", "Expected `object`"),
        ("canonical", '{"arrival_s": "soon"}\n', "line 1"),
        ("canonical", '{"provenance": {"source": "x", "rows_read": 3, "rows_kept": 1}}\n', "line 1: rows_read = 3"),
        ("servegen", "no archive", "is no archive"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(kind: str, text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match=str(file.name)) as caught:
        read(kind, file)
    assert said in str(caught.value)


@pytest.mark.parametrize("histogram", ["{5: 0.0}", "[5, 6]", "{5: 'often'}", "{5", "{'five': 1.0}"])
def test_servegen_names_a_histogram_that_is_none(histogram: str, tmp_path: Path) -> None:
    content = json.dumps({"0": {"input_tokens": "{5: 1.0}", "output_tokens": histogram}}).encode()
    file, member = tmp_path / "clients.tar", tarfile.TarInfo("chunk-3-dataset.json")
    member.size = len(content)
    with tarfile.open(file, "w") as archive:
        archive.addfile(member, io.BytesIO(content))
    with pytest.raises(ConfigError, match=r"clients\.tar: chunk-3-dataset\.json: "):
        read("servegen", file)


def test_unknown_formats_options_and_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'azur'.*azure"):
        read("azur", "x")
    with pytest.raises(ConfigError, match=r"unknown option 'limt'.*limit"):
        read("azure", "x", limt=3)
    with pytest.raises(ConfigError, match="cannot be read"):
        read("azure", tmp_path / "absent.csv")
    damaged = tmp_path / "cut.csv.gz"
    damaged.write_bytes(gzip.compress(b"TIMESTAMP\n" * 1000)[:-20])
    with pytest.raises(ConfigError, match="damaged"):
        read("azure", damaged)


# --- the canonical form ----------------------------------------------------------------------------------------------


def test_canonical_lines_come_back(tmp_path: Path) -> None:
    rows = (
        TraceRow(arrival_s=0.0, input_tokens=40, output_tokens=3, prefix_blocks=(1, 2), block_tokens=16, tenant="a"),
        TraceRow(
            arrival_s=1.5, input_tokens=60, output_tokens=1, parent=0, delay_s=2.0, session="s", slo="x", priority=2
        ),
    )
    file = tmp_path / "own.jsonl"
    file.write_bytes(encode(Trace(rows, Provenance(source="test", rows_read=3, rows_kept=2, dropped={"odd": 1}))))
    assert read("canonical", file).rows == rows
    file.write_bytes(file.read_bytes() + b'{"arrival_s": 2.0, "inp')  # a server that is still writing
    again = read("canonical", file)
    assert again.rows == rows
    assert again.provenance.dropped == {"cut off line": 1}


@pytest.mark.parametrize(
    "row",
    [
        TraceRow(arrival_s=0.0, input_tokens=1, output_tokens=1, parent=5),
        TraceRow(arrival_s=0.0, input_tokens=1, output_tokens=1, parent=0, delay_s=float("nan")),
        TraceRow(arrival_s=0.0, input_tokens=4, output_tokens=1, prefix_blocks=(1,)),
    ],
)
def test_rows_that_cannot_be_played_are_refused(row: TraceRow, tmp_path: Path) -> None:
    first = TraceRow(arrival_s=0.0, input_tokens=1, output_tokens=1)
    file = tmp_path / "own.jsonl"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, (first, row))) + b"\n")
    with pytest.raises(ConfigError, match=r"own\.jsonl: (row 1|line 2)"):
        read("canonical", file)


def test_a_row_without_tokens_is_dropped_or_refused_where_rows_have_numbers(tmp_path: Path) -> None:
    full, empty = (TraceRow(arrival_s=0.0, input_tokens=9, output_tokens=count) for count in (1, 0))
    child = TraceRow(arrival_s=1.0, input_tokens=9, output_tokens=2, parent=2)
    file = tmp_path / "own.jsonl"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, (full, empty, full))) + b"\n")
    trace = read("canonical", file)
    assert trace.rows == (full, full) and trace.provenance.dropped == {"no output tokens": 1}
    file.write_bytes(b"\n".join(map(msgspec.json.encode, (full, empty, full, child))) + b"\n")
    with pytest.raises(ConfigError, match=r"own\.jsonl: row 1: 9 tokens in and 0 out"):
        read("canonical", file)


def test_equal_blocks_have_equal_content_and_nothing_else_does() -> None:
    def row(length: int, *blocks: int) -> TraceRow:
        return TraceRow(arrival_s=0, input_tokens=length, output_tokens=1, prefix_blocks=blocks, block_tokens=16)

    a, b = prompt_ids(row(40, 1, 2), 0, 1000, 0), prompt_ids(row(50, 1, 2), 0, 1000, 1)
    assert len(a) == 40 and len(b) == 50
    assert a[:32] == b[:32] and a[32:36] != b[32:36]
    assert a == prompt_ids(row(40, 1, 2), 0, 1000, 0)
    assert a[:16] != prompt_ids(row(40, 1, 2), 1, 1000, 0)[:16]
    assert prompt_ids(row(20, 1, 2), 0, 1000)[:20] == a[:20]  # the last block may be partial
    heads = {prompt_ids(row(16, block), 0, 1000)[:4] for block in range(2000)}
    assert len(heads) == 2000
    assert all(FIRST_ID <= token < 1000 for token in a)
    assert len({prompt_ids(row(16), 0, 1000, number)[:4] for number in range(2000)}) == 2000


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("azure", {"limit": "ten"}, "limit = 'ten': expected `int"),
        ("mooncake", {"jitter_s": -1.0}, "jitter_s = -1.0: expected a number from 0"),
        ("servegen", {"rate_per_s": float("nan")}, "rate_per_s = nan: expected a number from 0"),
    ],
)
def test_an_option_of_another_kind_is_refused(name: str, options: dict[str, Any], words: str) -> None:
    """Before the file is opened: options come from experiment files."""
    with pytest.raises(ConfigError) as refused:
        read(name, "not there", **options)
    assert words in str(refused.value)
