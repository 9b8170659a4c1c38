"""The unmodified openai-node package, with ``ws``."""

from __future__ import annotations

import json
import shutil

import pytest

from ..gateways.fakes import PIECES, serve
from .environment import HERE, need, node_major, run

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
WHOLE = "".join(PIECES)


async def test_responses_with_and_without_lane_and_chat() -> None:
    """H, F6: every message is an object with a string ``type``, or this client complains."""
    node_major()
    folder = need("node")
    pytest.importorskip("uvicorn")
    from mainspring.plugins.gateways.http import HttpGateway

    shutil.copy(HERE / "node" / "openai_node.mjs", folder)  # modules are looked for beside the script
    async with serve(kind=HttpGateway) as served:
        url = f"http://127.0.0.1:{served.gateway.port}/v1"
        seen = json.loads(await run("node", str(folder / "openai_node.mjs"), url))
    assert (seen["first"]["text"], seen["lane"]["text"], seen["chat"]) == (WHOLE, WHOLE, WHOLE)
    assert set(seen["first"]["lanes"]) == {None} and set(seen["lane"]["lanes"]) == {"a"}
    assert (seen["unknown"]["type"], seen["unknown"]["code"]) == ("error", "previous_response_not_found")
    assert seen["errors"] == ["previous_response_not_found"] or "resp_nope" in seen["errors"][0]
