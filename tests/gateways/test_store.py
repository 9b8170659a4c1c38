"""Responses that outlive their connection, where the operator has given them memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .fakes import PIECES, serve
from .test_http import http, request, talk
from .test_responses_ws import client, create, response

pytestmark = pytest.mark.anyio
WHOLE = "".join(PIECES)


async def ask(served: Any, path: str, method: str = "POST", key: str = "", **fields: Any) -> tuple[int, Any]:
    headers = [f"Authorization: Bearer {key}"] if key else []
    body = json.dumps(fields).encode() if fields else b""
    (reply,) = await talk(served, request(path, body, "Connection: close", *headers, method=method))
    return reply.status, reply.json


async def test_a_stored_response_is_continued_on_another_connection() -> None:
    async with serve(response_store_bytes=10_000) as served:
        async with client(served) as ws:
            await create(ws, "one")
            first = (await response(ws))[-1]["response"]
            assert first["store"] is True
            await create(ws, "secret", store=False)
            unstored = (await response(ws))[-1]["response"]
            assert unstored["store"] is False
        async with client(served) as ws:
            await create(ws, "two", previous_response_id=first["id"])
            assert (await response(ws))[-1]["response"]["previous_response_id"] == first["id"]
            assert [one["content"] for one in served.text.requests[-1].messages or ()] == ["one", WHOLE, "two"]
            await create(ws, "two", previous_response_id=unstored["id"])
            assert (await response(ws))[-1]["error"]["code"] == "previous_response_not_found"
        status, _, body = await served.http(f"GET /v1/responses/{first['id']} HTTP/1.1\nHost: localhost")
        assert (status, json.loads(body)) == (200, first)


async def test_without_memory_nothing_is_stored() -> None:
    """E7: as before; the response says so."""
    async with serve() as served:
        async with client(served) as ws:
            await create(ws, store=True)
            first = (await response(ws))[-1]["response"]
            assert first["store"] is False
        async with client(served) as ws:
            await create(ws, previous_response_id=first["id"])
            assert (await response(ws))[-1]["error"]["code"] == "previous_response_not_found"


async def test_the_oldest_go_when_the_memory_is_full() -> None:
    async with serve(response_store_bytes=6_000) as served, client(served) as ws:
        ids = []
        for number in range(12):
            await create(ws, str(number))
            ids.append((await response(ws))[-1]["response"]["id"])
        store = served.hub.responses
        assert 0 < len(store) < 12 and store.num_bytes <= 6_000
        assert [store.find("", one) is not None for one in ids] == [False] * (12 - len(store)) + [True] * len(store)


async def test_over_http_it_is_kept_found_continued_and_deleted() -> None:
    pytest.importorskip("uvicorn")
    async with http(response_store_bytes=100_000) as served:
        _, first = await ask(served, "/v1/responses", input="one", max_output_tokens=5)
        assert first["store"] is True
        path = "/v1/responses/" + first["id"]
        assert await ask(served, path, "GET") == (200, first)
        status, second = await ask(
            served, "/v1/responses", input="two", max_output_tokens=5, previous_response_id=first["id"]
        )
        assert (status, second["previous_response_id"]) == (200, first["id"])
        assert (await ask(served, path, "DELETE"))[1] == {"id": first["id"], "object": "response", "deleted": True}
        assert (await ask(served, path, "DELETE"))[0] == (await ask(served, path, "GET"))[0] == 404
        # Its conversation lives on in what continued it.
        assert (await ask(served, "/v1/responses/" + second["id"], "GET"))[0] == 200


async def test_another_key_does_not_find_it(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    file = tmp_path / "keys.toml"
    file.write_text('[alice]\nkey = "a"\n[bob]\nkey = "b"\n', encoding="utf-8")
    async with http(response_store_bytes=100_000, keys_file=str(file)) as served:
        _, first = await ask(served, "/v1/responses", key="a", input="one", max_output_tokens=5)
        path = "/v1/responses/" + first["id"]
        assert [(await ask(served, path, "GET", key=key))[0] for key in ("", "b", "a")] == [401, 404, 200]
        assert (await ask(served, path, "DELETE", key="b"))[0] == 404
        _, refused = await ask(served, "/v1/responses", key="b", input="x", previous_response_id=first["id"])
        assert refused["error"]["code"] == "previous_response_not_found"
