"""A served engine whose executor fails past the intensity ends its process with exit code 70."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MODULE = '''
import threading

from mainspring.core.policy import SchedulerPolicy
from mainspring.plugins.testing.fake_executor import FakeExecutor


class Faulty(FakeExecutor):
    """Raises in every step; loads as the default model's vocabulary."""

    def __init__(self, options, config):
        super().__init__(64, config.allocator.block_size, vocab_size=49152, on_step=self.fail)

    def fail(self, launch):
        if launch.rows:
            raise RuntimeError("no such device")


class Blocks(SchedulerPolicy):
    """Waits for ever when it is asked about the first step."""

    def order_waiting(self, view):
        if view.step < 1:
            threading.Event().wait()


class Steady(FakeExecutor):
    def __init__(self, options, config):
        super().__init__(64, config.allocator.block_size, vocab_size=49152)
'''


def serve(tmp_path: Path, use: str, *more: str) -> subprocess.Popen[str]:
    (tmp_path / "own_executors.py").write_text(MODULE)
    settings = [f"executor.use=own_executors:{use}", "sampler.use=scripted", "server.port=0", "log.format=json"]
    command = [sys.executable, "-m", "mainspring", "serve", *(f"--set={item}" for item in settings), *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    url = ""
    for line in process.stderr:
        entry = json.loads(line)
        url = str(entry.get("url", url))
        if entry["event"] == "ready":
            return url
    raise AssertionError("it never got ready")


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


async def generate(url: str) -> dict[str, object]:
    async with connect(url) as socket:
        await socket.send(json.dumps({"type": "generate", "id": "1", "prompt": "Hi", "max_tokens": 3}))
        async for frame in socket:
            message: dict[str, object] = json.loads(frame)
            if message["type"] in ("done", "error"):
                return message
    raise ConnectionError("closed without a terminal")


async def test_exit_code_70(tmp_path: Path) -> None:
    process = await asyncio.to_thread(serve, tmp_path, "Faulty")
    try:
        url = await asyncio.to_thread(address, process)
        codes = []
        while process.poll() is None:
            try:
                codes.append((await generate(url))["code"])
            except InvalidStatus:  # not ready: it is being rebuilt
                await asyncio.sleep(0.01)
            except (OSError, WebSocketException):  # gone, or going: cut in the middle of a handshake or of a frame
                break
        assert codes[0] == "server_error"
        assert await asyncio.to_thread(process.wait, 120) == 70
    finally:
        end(process)


async def test_a_signal_drains_and_ends_with_zero(tmp_path: Path) -> None:
    """E-13: nothing runs, so SIGTERM ends it at once."""
    process = await asyncio.to_thread(serve, tmp_path, "Steady")
    try:
        url = await asyncio.to_thread(address, process)
        assert (await generate(url))["type"] == "done"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 120) == 0
    finally:
        end(process)


async def test_a_policy_that_blocks_inside_c_costs_one_decision(tmp_path: Path) -> None:
    """The event loop would stand still for good, and nobody would hear of it."""
    process = await asyncio.to_thread(serve, tmp_path, "Steady", "--set", "scheduler.use=own_executors:Blocks")
    try:
        url = await asyncio.to_thread(address, process)
        async with asyncio.timeout(60):
            assert (await generate(url))["type"] == "done"
        assert process.stderr is not None
        fault = json.loads(await asyncio.to_thread(process.stderr.readline))
        assert (fault["event"], fault["hook"]) == ("policy_fault", "order_waiting")
        assert "did not return within" in fault["reason"]
    finally:
        end(process)


async def test_sighup_applies_the_scheduler_table_only(tmp_path: Path) -> None:
    """An edited plugins.toml changes the policy under load; any other changed key is refused by name."""
    file = tmp_path / "plugins.toml"
    file.write_text("[scheduler]\nuse = 'fcfs'\n")
    process = await asyncio.to_thread(serve, tmp_path, "Steady", "--config", str(file))
    assert process.stderr is not None
    try:
        url = await asyncio.to_thread(address, process)

        async def hup(text: str) -> dict[str, object]:
            file.write_text(text)
            process.send_signal(signal.SIGHUP)
            while True:
                entry: dict[str, object] = json.loads(await asyncio.to_thread(process.stderr.readline))  # type: ignore[union-attr]
                if entry["event"] in ("swapped", "reload_refused"):
                    return entry

        assert (await hup("[scheduler]\nuse = 'token_budget'\n"))["new"] == "token_budget"
        refused = await hup("[scheduler]\nuse = 'fcfs'\n[allocator]\nblock_size = 32\n")
        assert "allocator.block_size" in str(refused["reason"])
        refused = await hup("[scheduler]\nuse = 'fcfz'\n")
        assert "did you mean 'fcfs'" in str(refused["reason"])
        assert (await generate(url))["type"] == "done"
    finally:
        end(process)
