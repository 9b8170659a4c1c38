"""``/v1/control`` on real sockets: behind the admin key only, and a swap under load loses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from mainspring.core.registry import Registry
from mainspring.plugins.config_file import load
from mainspring.plugins.engine import Engine
from mainspring.plugins.testing.fake_executor import FakeExecutor, expected_ids

pytestmark = pytest.mark.anyio
VOCABULARY = 49152
QUIET = ["journal.path=", "sampler.use=scripted", "allocator.block_size=4", "server.port=0"]
POLICIES = [info.name for info in Registry().available("scheduler")]


@asynccontextmanager
async def served(*more: str) -> AsyncIterator[tuple[Engine, str]]:
    config = load(None, [*QUIET, *more]).config
    async with Engine(
        config, gateways=True, make_executor=lambda: FakeExecutor(512, 4, vocab_size=VOCABULARY)
    ) as engine:
        yield engine, f"ws://127.0.0.1:{engine.gateways[0].port}"


async def ask(socket: Any, **frame: Any) -> dict[str, Any]:
    await socket.send(json.dumps(frame))
    answer: dict[str, Any] = json.loads(await socket.recv())
    return answer


async def test_only_with_the_key() -> None:
    async with served() as (_, url):
        with pytest.raises(InvalidStatus, match="404"):
            await connect(f"{url}/v1/control", additional_headers={"Authorization": "Bearer x"})
    async with served("server.admin_key=secret") as (_, url):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}):
            with pytest.raises(InvalidStatus, match="401"):
                await connect(f"{url}/v1/control", additional_headers=headers)


async def test_swaps_under_load() -> None:
    """All policies in turn while streams run: every stream gets its own text, whole."""
    async with served("server.admin_key=secret") as (engine, url):
        key = {"Authorization": "Bearer secret"}
        prompts = [tuple(range(5 + index, 25 + index)) for index in range(12)]
        asked = [
            asyncio.create_task(engine.generate({"token_ids": list(prompt), "max_tokens": 150, "ignore_eos": True}))
            for prompt in prompts
        ]
        async with connect(f"{url}/v1/control", additional_headers=key) as operator:
            for name in POLICIES:
                answer = await ask(operator, type="swap", scheduler={"use": name})
                assert (answer["type"], answer["new"]) == ("swapped", name)
            refused = await ask(operator, type="swap", scheduler={"use": "fcfz"})
            assert "did you mean 'fcfs'" in refused["message"]
            status = await ask(operator, type="status")
            assert status["scheduler"]["use"] == POLICIES[-1]
            await ask(operator, type="swap", scheduler={"use": "fcfs"})
            await operator.send(b"binary")
            with pytest.raises(Exception, match="1003"):
                await operator.recv()
        for prompt, result in zip(prompts, await asyncio.gather(*asked), strict=True):
            assert list(result.token_ids) == expected_ids(prompt, 150, VOCABULARY)
