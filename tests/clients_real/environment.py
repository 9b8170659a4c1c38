"""Where `make clients` put the clients, and how a test runs one: as a process of its own, as its users do.

A client that could not be installed is skipped with the reason that was written down when it was tried.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPTS = HERE / "scripts"
EXAMPLES = ROOT / "examples" / "clients"
CLIENTS = ROOT / ".clients"
TIMEOUT_S = 120  # of a client's process: some take seconds to import on a busy machine


def need(name: str) -> Path:
    """The folder of a client; skips the test if it is not there."""
    folder = CLIENTS / name
    if not (folder / ".installed").exists():
        missing = folder / ".missing"
        pytest.skip(missing.read_text(encoding="utf-8").strip() if missing.exists() else f"{name}: run `make clients`")
    return folder


@functools.cache
def node_major() -> int:
    """Of the Node on the PATH; skips the test if there is none."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no node on the PATH")
    version = subprocess.run([node, "-p", "process.versions.node"], capture_output=True, check=True, text=True).stdout
    match = re.match(r"\d+", version)
    assert match is not None, version
    return int(match[0])


def browser() -> str:
    """A Chromium; skips the test if there is none."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on the PATH")
    return found


async def run(*command: str, **environment: str) -> str:
    """Standard output of a command that must succeed."""
    process = await start(*command, **environment)
    return await output(process)


async def start(*command: str, **environment: str) -> asyncio.subprocess.Process:
    # A client is no part of the project: it must not find it by accident.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**clean, **environment}
    )


async def output(process: asyncio.subprocess.Process) -> str:
    out, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def report(script: str, url: str, **environment: str) -> Any:
    """What a script in the environment of the Python clients has seen."""
    python = need("python") / "bin" / "python"
    return json.loads(await run(str(python), str(SCRIPTS / script), url, **environment))


async def report_here(script: str, url: str, **environment: str) -> Any:
    """The same in the environment of the tests."""
    return json.loads(await run(sys.executable, str(SCRIPTS / script), url, **environment))
