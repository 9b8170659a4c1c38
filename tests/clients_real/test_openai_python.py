"""The unmodified openai-python package against the gateway; skipped where it is not installed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ..gateways.fakes import PIECES, serve

openai = pytest.importorskip("openai")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning"),
]
TERMINALS = ("response.completed", "response.incomplete", "response.failed")


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def test_async_connection_streams_continues_and_hears_of_errors() -> None:
    """E7: stream, continuation, error, warm-up and steer refusal on one connection."""
    async with serve() as served:
        client = openai.AsyncOpenAI(api_key="sk-any", base_url=f"http://127.0.0.1:{served.gateway.port}/v1")
        async with client.responses.connect() as connection:

            async def run(**fields: Any) -> list[Any]:
                await connection.response.create(**{"model": "tiny", "input": "hi", "max_output_tokens": 5, **fields})
                events: list[Any] = []
                async for event in connection:
                    events.append(event)
                    if event.type in (*TERMINALS, "error"):
                        return events
                raise AssertionError("the stream ended without a terminal")

            first = await run()
            assert text_of(first) == "".join(PIECES)
            assert first[-1].response.output_text == "".join(PIECES)
            assert first[-1].response.usage.output_tokens == 5
            second = await run(previous_response_id=first[-1].response.id)
            assert second[-1].response.previous_response_id == first[-1].response.id
            (error,) = await run(previous_response_id="resp_nope")
            assert error.error.code == "previous_response_not_found"
            warm = await run(generate=False)
            assert (warm[-1].type, warm[-1].response.output) == ("response.completed", [])
            lanes = await run(stream_id="a")
            assert {event.stream_id for event in lanes} == {"a"}
        await client.close()


def run_sync(port: int) -> tuple[str, str]:
    client = openai.OpenAI(api_key="sk-any", base_url=f"http://127.0.0.1:{port}/v1")
    with client, client.responses.connect() as connection:
        connection.response.create(model="tiny", input="hi", max_output_tokens=5)
        events = []
        for event in connection:
            events.append(event)
            if event.type in TERMINALS:
                break
        models = client.models.list()
        return text_of(events), models.data[0].id


async def test_sync_connection_and_the_list_of_models() -> None:
    async with serve() as served:
        assert await asyncio.to_thread(run_sync, served.gateway.port) == ("".join(PIECES), "tiny")


async def test_a_drain_is_no_clean_end_for_the_sdk() -> None:
    """G2: 1012 raises, so that no program takes a cut answer for a whole one."""
    async with serve() as served:
        client = openai.AsyncOpenAI(api_key="sk-any", base_url=f"http://127.0.0.1:{served.gateway.port}/v1")
        async with client.responses.connect() as connection:
            await connection.response.create(model="tiny", input="hi", max_output_tokens=10**6)
            seen: list[str] = []

            async def read() -> None:
                async for event in connection:
                    seen.append(event.type)  # noqa: PERF401 - what came before the exception is looked at

            reading = asyncio.create_task(read())
            await served.text.until_live(1)
            await served.gateway.drain()
            with pytest.raises(Exception, match="1012"):
                await reading
            assert seen[-1] == "response.incomplete"
        await client.close()


async def test_realtime_text() -> None:
    """Session, item, response, cancel, and a cancel of nothing."""
    async with serve(token_s=0.002) as served:
        client = openai.AsyncOpenAI(api_key="sk-any", base_url=f"http://127.0.0.1:{served.gateway.port}/v1")
        async with client.realtime.connect(model="tiny") as connection:
            await connection.session.update(
                session={"type": "realtime", "output_modalities": ["text"], "instructions": "be brief"}
            )
            content = [{"type": "input_text", "text": "hi"}]
            await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
            await connection.response.create(response={"max_output_tokens": 5})
            events: list[Any] = []

            async def until(kind: str) -> Any:
                async for event in connection:
                    events.append(event)
                    if event.type == kind:
                        return event
                raise AssertionError(kind)

            done = await until("response.done")
            assert text_of(events) == "".join(PIECES)
            assert (done.response.status, done.response.usage.output_tokens) == ("incomplete", 5)
            await connection.response.create()
            await until("response.output_text.delta")
            await connection.response.cancel()
            assert (await until("response.done")).response.status == "cancelled"
            await connection.response.cancel()
            assert (await until("error")).error.code == "response_cancel_not_active"
        await client.close()
