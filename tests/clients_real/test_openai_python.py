"""The unmodified openai-python and openai-agents packages, with the WebSocket library that they ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.plugins.schema import GenerateRequest

from ..gateways.fakes import PIECES, Served, serve
from .environment import SCRIPTS, need, output, report, start

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
WHOLE = "".join(PIECES)


def base(served: Served) -> str:
    return f"http://127.0.0.1:{served.gateway.port}/v1"


def stops(request: GenerateRequest) -> str:
    """Every answer ends as the model would end it."""
    return "stop"


async def test_responses_over_websocket_asynchronous_and_blocking() -> None:
    """H, E7, F13, F14: stream, continuation, errors, warm-up, lanes, a refused steer, cancel, on one connection."""
    async with serve() as served:
        seen = await report("openai_responses.py", base(served))
    assert (seen["text"], seen["output_text"], seen["output_tokens"]) == (WHOLE, WHOLE, 5)
    assert seen["types"][0] == "response.created" and seen["types"][-1] == "response.incomplete"
    assert seen["continues"] == seen["first_id"]
    assert seen["unknown_parent"] == ["previous_response_not_found", 400]
    assert seen["warm"] == ["response.completed", []] and seen["lane_of_warm"] is None
    assert set(seen["lanes"]) == {"a", "b"}
    assert seen["lanes"] != sorted(seen["lanes"]), "the lanes did not interleave"
    assert seen["tools"] == ["unsupported_parameter", "tools"]
    assert seen["steer"] == "steering_not_supported"
    assert seen["cancelled"] == ["response.incomplete", "cancelled"]
    assert (seen["models"], seen["blocking"]) == (["tiny"], WHOLE)


async def test_a_restart_is_no_clean_end_and_is_survived_by_who_reconnects() -> None:
    """G2: 1012 raises where nothing was agreed, so that no program takes a cut answer for a whole one."""
    python = need("python") / "bin" / "python"
    async with serve() as served:
        process = await start(str(python), str(SCRIPTS / "openai_reconnect.py"), base(served))
        assert process.stdout is not None
        assert await process.stdout.readline() == b"streaming\n"
        await served.gateway.drain()
        await served.gateway.start(served.port)
        without, reconnecting = json.loads(await output(process))
    assert without["last"] == "response.incomplete"
    assert "1012" in without["error"]
    assert reconnecting == {"codes": [1012], "incomplete": 2}


async def test_realtime_text() -> None:
    """H: session, item, response, cancel, and a cancel of nothing."""
    async with serve(token_s=0.002) as served:
        seen = await report("openai_realtime.py", base(served))
    assert (seen["text"], seen["done"]) == (WHOLE, ["incomplete", 5])
    assert {"session.created", "session.updated", "conversation.item.added"} <= set(seen["types"])
    assert (seen["cancelled"], seen["nothing_to_cancel"]) == ("cancelled", "response_cancel_not_active")


async def test_http_streaming_and_not() -> None:
    """H: chat completions, completions and responses."""
    pytest.importorskip("uvicorn")
    from mainspring.plugins.gateways.http import HttpGateway

    async with serve(kind=HttpGateway) as served:
        seen = await report("openai_http.py", base(served))
    assert seen["chat"] == [WHOLE, 5, "length"]
    assert (seen["chunks"], seen["chunk_usage"]) == (WHOLE, 5)
    assert seen["completion"] == seen["response"] == seen["events"] == WHOLE
    assert seen["refused"] == ["BadRequestError", "unsupported_parameter", "tools"]
    assert seen["no_model"] == ["NotFoundError", "model_not_found", "model"]


async def test_agents_take_two_turns_on_one_connection() -> None:
    """H, F13: openai-agents always sends ``stream``, and takes the text from the terminal event."""
    async with serve() as served:
        served.text.steer = stops
        seen: dict[str, Any] = await report("agents_ws.py", base(served))
    assert seen["first"] == seen["deltas"] == seen["second"] == WHOLE
    assert seen["output_tokens"] == 5
    assert "previous_response_not_found" in seen["unknown_parent"]
    turns = [[(one["role"], one["content"]) for one in request.messages or ()] for request in served.text.requests]
    assert turns[0] == [("system", "be brief"), ("user", "hi")]
    assert turns[1] == [*turns[0], ("assistant", WHOLE), ("user", "and?")]
