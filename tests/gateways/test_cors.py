"""Web pages of allowed origins may read answers over HTTP; others may not, and programs notice nothing."""

from __future__ import annotations

import pytest

from mainspring.plugins.gateways.ws import WebSocketGateway

from .fakes import FakePort, Served, serve

pytestmark = pytest.mark.anyio
PAGE = "https://app.example"
ALLOWED = "access-control-allow-origin"


def kinds() -> list[type[WebSocketGateway]]:
    try:
        import uvicorn  # noqa: F401 - whether it is there
    except ImportError:
        return [WebSocketGateway]
    from mainspring.plugins.gateways.http import HttpGateway

    return [WebSocketGateway, HttpGateway]


async def get(served: Served, path: str, origin: str, method: str = "GET", *more: str) -> tuple[int, dict[str, str]]:
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Origin: {origin}", *more, "Connection: close"]
    status, headers, _ = await served.http("\n".join(head))
    return status, headers


@pytest.mark.parametrize("kind", kinds())
async def test_answers_name_the_origin_of_pages_that_may_read_them(kind: type[WebSocketGateway]) -> None:
    async with serve(kind=kind, allow_origins=(PAGE,)) as served:
        for origin in (PAGE, "http://localhost:3000"):
            for path in ("/v1/models", "/nowhere"):
                _, headers = await get(served, path, origin)
                assert (headers[ALLOWED], headers["vary"]) == (origin, "Origin")
        for origin in ("https://evil.example", "null", PAGE + ".evil.example"):
            assert ALLOWED not in (await get(served, "/v1/models", origin))[1]
        status, headers, _ = await served.http("GET /v1/models HTTP/1.1\nHost: localhost")
        assert status == 200 and ALLOWED not in headers


@pytest.mark.parametrize("kind", kinds())
async def test_a_browser_may_ask_first(kind: type[WebSocketGateway], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key, which browsers do not send with the question; what the page wants to send is allowed."""
    ask = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization, x-stainless-lang")
    async with serve(kind=kind, allow_origins=(PAGE,)) as served:
        status, headers = await get(served, "/v1/chat/completions", PAGE, "OPTIONS", *ask)
        assert (status, headers[ALLOWED]) == (204, PAGE)
        assert headers["access-control-allow-headers"] == "authorization, x-stainless-lang"
        assert "POST" in headers["access-control-allow-methods"] and "content-length" not in headers
        status, headers = await get(served, "/v1/chat/completions", "https://evil.example", "OPTIONS", *ask)
        assert status >= 400 and ALLOWED not in headers
        status, headers = await get(served, "/v1/models", PAGE, "OPTIONS")  # which asks for nothing
        assert status in (400, 404, 405) and "access-control-allow-methods" not in headers


async def test_a_refusal_over_http_can_be_read_by_the_page() -> None:
    pytest.importorskip("uvicorn")
    async with serve(kind=kinds()[-1], allow_origins=(PAGE,)) as served:
        assert isinstance(served.port, FakePort)
        served.port.draining = True
        status, headers = await get(served, "/v1/chat/completions", PAGE, "POST", "Content-Length: 2")
        assert (status, headers[ALLOWED]) == (503, PAGE)
        served.port.draining = False
