"""The text edge when something is refused, fails, ends or starts; nothing is left behind."""

from __future__ import annotations

import threading
from collections import deque

import anyio
import anyio.lowlevel
import pytest

from mainspring.core.errors import ConfigError
from mainspring.core.messages import (
    Cancel,
    Failure,
    FinishReason,
    Submit,
    Usage,
)
from mainspring.plugins.schema import parse
from mainspring.plugins.settings import Config, ModelConfig
from mainspring.plugins.text.edge import HUGE_CHARS, TextEdge
from mainspring.plugins.text.events import TextEvent

from .harness import Engine, GatedModel, Port, Sink, engine, finish, opened, until

pytestmark = pytest.mark.anyio
STOP, LENGTH, CANCELLED = FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED
ERROR = FinishReason.ERROR


# --- refusals and failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"token_ids": [0, 299, 300]}, "token_ids[2]", "token_ids[2] = 300: the vocabulary has ids 0 to 299"),
        ({"token_ids": [2**31 - 1]}, "token_ids[0]", "0 to 299"),
        ({"token_ids": [1], "stop_token_ids": [5, 400]}, "stop_token_ids[1]", "400"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages", "model.chat_template"),
    ],
)
async def test_refusals_arrive_as_an_end_without_accepted_d05_d07(
    fields: dict[str, object], param: str, words: str
) -> None:
    async with engine() as running:
        _, sink = running.open("", **fields)
        await until(lambda: sink.ended)
        failure = sink.end.finish.failure
        assert failure is not None and failure.param == param and words in failure.message
        assert len(sink.events) == 1 and running.port.of(Submit) == [] and running.edge.num_live == 0


async def test_ids_of_the_models_table_beyond_the_tokenizer_are_accepted_d05() -> None:
    async with engine() as running:
        assert running.edge.model.vocab_size == 261
        running.open("", token_ids=[299])
        await until(lambda: running.port.of(Submit))


async def test_the_hosts_refusal_reaches_the_sink() -> None:
    async with engine() as running:
        rid, sink = running.open("a")
        await until(lambda: running.port.of(Submit))
        await running.emit((rid, "", finish(ERROR, 0, failure=Failure("queue_full", "full"))))
        assert len(sink.events) == 1 and sink.end.finish.failure == Failure("queue_full", "full")


async def test_an_abort_of_all_ends_each_once() -> None:
    async with engine() as running:
        opened_requests = [await running.accepted() for _ in range(3)]
        end = finish(ERROR, 1, failure=Failure("server_error", "the executor failed"))
        await running.emit(*((rid, "a", end) for rid, _ in opened_requests))
        assert [sink.end.finish for _, sink in opened_requests] == [end] * 3 and running.edge.num_live == 0


async def test_a_sink_that_raises_is_cancelled_and_others_go_on() -> None:
    def bad(event: TextEvent) -> None:
        raise RuntimeError("boom")

    async with engine() as running:
        rid = running.edge.open(parse({"prompt": "a"}), bad)
        good, sink = running.open("b")
        await until(lambda: len(running.port.of(Submit)) == 2)
        await running.emit((rid, ""), (good, ""))
        assert running.port.of(Cancel) == [Cancel(rid)] and running.edge.num_live == 1
        await running.emit((rid, "x"), (good, "y"))
        await running.emit((rid, "", finish(CANCELLED, 1)), (good, "", finish(LENGTH, 1)))
        assert sink.text == "y" and running.edge.num_live == 0
        running.edge.open(parse({"token_ids": [10**6]}), bad)  # raises at its end: logged only
        await until(lambda: running.edge.num_live == 0)


async def test_output_that_cannot_be_decoded_fails_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine() as running:
        broken, first = await running.accepted()
        good, second = await running.accepted()
        later = running.edge.model.pieces.later
        monkeypatch.setattr(running.edge.model.pieces, "later", lambda index: later(index) if index != 1 else 1 / 0)
        await running.emit_ids((broken, (97, 1)), (good, (98, 99)))
        assert first.end.finish.failure is not None and first.end.finish.failure.code == "server_error"
        assert running.port.of(Cancel) == [Cancel(broken)] and second.text == "bc"


async def test_an_encoder_that_fails_is_a_server_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine() as running:
        monkeypatch.setattr(running.edge.model, "encode", lambda _: 1 / 0)
        _, sink = running.open("a")
        await until(lambda: sink.ended)
        assert sink.end.finish.failure == Failure("server_error", "the prompt could not be encoded")


async def test_stopping_ends_everything_that_lives() -> None:
    model = GatedModel()
    with opened(model.gate):
        async with engine(model) as running:
            rid, sink = await running.accepted("a")
            _, encoding = running.open("slow")
            await running.emit((rid, "xy"))
        for each in (sink, encoding):
            assert each.end.finish.failure is not None and each.end.finish.failure.code == "draining"
        assert sink.end.finish.usage == Usage(1, 0, 2) and running.edge.num_live == 0
        _, late = running.open("a")
        assert late.events == []
        await until(lambda: late.ended)
        assert late.end.finish.failure is not None and late.end.finish.failure.code == "draining"


async def test_while_the_server_drains_only_what_was_taken_before_is_started() -> None:
    """E-13: the host is told of the drain later, and refuses by itself what comes after that."""
    async with engine() as running:
        running.port.draining = True
        _, late = running.open("a")
        await until(lambda: late.ended)
        assert late.end.finish.failure is not None and late.end.finish.failure.code == "draining"
        rid = running.edge.open(parse({"prompt": "a"}), Sink(), taken=True)
        await until(lambda: running.port.of(Submit))
        assert [submit.rid for submit in running.port.of(Submit)] == [rid]
        await running.emit((rid, "a", finish(LENGTH, 1)))


async def test_a_crash_ends_the_live_requests_and_the_edge_can_run_again() -> None:
    port = Port()
    async with engine(port=port) as running:
        edge = running.edge
    rid_sinks: list[Sink] = []
    async with anyio.create_task_group() as group:

        async def crash() -> None:
            with pytest.raises(ExceptionGroup):
                await edge.run(port)

        await edge.start(port)
        group.start_soon(crash)
        await anyio.lowlevel.checkpoint()
        again = Engine(edge, port)
        rid, sink = await again.accepted(stop="#")
        rid_sinks.append(sink)
        port.fault = RuntimeError("port")
        await again.emit((rid, "#"))
        await until(lambda: sink.ended)
    assert sink.end.finish.failure == Failure("server_error", "the text edge failed")
    assert port.of(Cancel) == [Cancel(rid)]
    waiting = Sink()
    edge.open(parse({"prompt": "a"}), waiting)  # between two runs: waits for the next
    async with anyio.create_task_group() as group:
        group.start_soon(edge.run, port)
        await until(lambda: len(port.of(Submit)) == 2)
        group.cancel_scope.cancel()
    assert waiting.ended and edge.num_live == 0


# --- threads and leaks -----------------------------------------------------------------------------------------------


async def test_encoding_is_off_the_loop_and_huge_prompts_do_not_delay_small_ones_e07() -> None:
    model = GatedModel()
    with opened(model.gate):
        async with engine(model) as running:
            for _ in range(3):
                running.open("slow " * HUGE_CHARS)
            small, _ = running.open("small")
            await until(lambda: running.port.of(Submit))
            assert [submit.rid for submit in running.port.of(Submit)] == [small]
            assert threading.get_ident() not in model.threads


async def test_nothing_is_kept_of_finished_requests() -> None:
    """A-08, websocket A7: however they end, the tables are empty afterwards."""
    async with engine() as running:
        ends = [
            finish(LENGTH, 1),
            finish(STOP, 1, 97),
            finish(CANCELLED, 1),
            finish(ERROR, 1, failure=Failure("x", "y")),
        ]
        for round_ in range(30):
            rids = [(await running.accepted(stop="#"))[0] for _ in range(4)]
            cancelled, _ = running.open("a")
            running.edge.cancel(cancelled)
            running.open("", token_ids=[10**6])
            await running.emit(*((rid, "a") for rid in rids))
            await running.emit(*((rid, "a#", ends[(round_ + i) % 4]) for i, rid in enumerate(rids)))
        await until(lambda: running.edge.num_live == 0)
        tables = [value for value in vars(running.edge).values() if isinstance(value, (dict, list, set, deque))]
        assert len(tables) >= 3 and not any(tables)


# --- start -----------------------------------------------------------------------------------------------------------


async def test_start_loads_the_configured_model() -> None:
    edge = TextEdge(Config())
    with pytest.raises(RuntimeError, match="not been started"):
        edge.open(parse({"prompt": "a"}), Sink())
    with pytest.raises(RuntimeError, match="not been started"):
        _ = edge.model
    await edge.start(Port(vocab_size=49152))
    assert edge.model.has_chat_template


async def test_a_model_without_tokenizer_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        await TextEdge(Config(model=ModelConfig(path="nowhere"))).start(Port())
