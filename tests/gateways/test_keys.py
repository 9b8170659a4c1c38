"""API keys: who gets in, whose requests they are, and that no key is ever written down."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from mainspring.core.errors import ConfigError
from mainspring.plugins.gateways.keys import ANYBODY, Keys, load_keys
from mainspring.plugins.settings import ServerConfig

from .fakes import collect, generate, receive, send, serve

pytestmark = pytest.mark.anyio
ALICE, BOB = "sk-alice-0123456789", "sk-bob-9876543210"


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    file = tmp_path / "keys.toml"
    digest = hashlib.sha256(BOB.encode()).hexdigest()
    file.write_text(
        f'[alice]\nkey = "{ALICE}"\ntenant = "team-a"\nmax_connections = 2\nmax_requests = 2\n'
        f'[bob]\nsha256 = "{digest}"\n'
    )
    return str(file)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_a_key_is_needed_and_its_tenant_wins(keys_file: str) -> None:
    """The field of the request is only a wish; a key in the keys file decides."""
    async with serve(keys_file=keys_file) as served:
        for headers in ({}, bearer("sk-wrong"), {"Authorization": "Basic " + ALICE}, bearer("")):
            with pytest.raises(InvalidStatus) as refused:
                await connect(served.url, proxy=None, additional_headers=headers)
            assert refused.value.response.status_code == 401
            assert json.loads(refused.value.response.body or b"")["error"]["code"] == "invalid_api_key"
        for key in (ALICE, BOB):
            async with served.client(additional_headers=bearer(key)) as ws:
                await generate(ws, "a", max_tokens=1, tenant="somebody-else")
                await collect(ws, "a")
        assert served.text.tenants == ["team-a", "bob"]
    async with serve() as served, served.client() as ws:
        await generate(ws, "a", max_tokens=1, tenant="mine")
        await collect(ws, "a")
        assert served.text.tenants == ["mine"]


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        ([f"openai-insecure-api-key.{ALICE}"], None),
        (["llm.v1", f"openai-insecure-api-key.{ALICE}"], "llm.v1"),
        ([f"openai-insecure-api-key.{ALICE}", "llm.v1"], "llm.v1"),
    ],
)
async def test_f8_browsers_send_the_key_as_a_subprotocol_that_is_never_repeated(
    keys_file: str, offered: list[str], selected: str | None
) -> None:
    """F7, F8."""
    protocols = [Subprotocol(name) for name in offered]
    async with serve(keys_file=keys_file) as served, connect(served.url, proxy=None, subprotocols=protocols) as ws:
        assert ws.subprotocol == selected
        assert ws.response is not None
        assert ALICE not in str(ws.response.headers)


async def test_f8_a_key_in_the_address_is_refused_unless_allowed(keys_file: str) -> None:
    """F8."""
    async with serve(keys_file=keys_file) as served:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{served.url}?api_key={ALICE}", proxy=None)
        assert refused.value.response.status_code == 400
    async with (
        serve(keys_file=keys_file, query_key=True) as served,
        connect(f"{served.url}?api_key={ALICE}", proxy=None) as ws,
    ):
        assert (await receive(ws))["type"] == "hello"


async def test_f8_no_key_in_any_log(keys_file: str, capfd: pytest.CaptureFixture[str]) -> None:
    """F8: neither right nor wrong ones, wherever they stand."""
    with structlog.testing.capture_logs() as lines:
        async with serve(keys_file=keys_file, query_key=True) as served:
            async with served.client(additional_headers=bearer(ALICE)) as ws:
                await generate(ws, "a", max_tokens=1)
                await collect(ws, "a")
            for url, headers in ((f"{served.url}?api_key={BOB}x", {}), (served.url, bearer(ALICE + "x"))):
                with pytest.raises(InvalidStatus):
                    await connect(url, proxy=None, additional_headers=headers)
    seen = str(lines) + "".join(capfd.readouterr())
    assert ALICE not in seen
    assert BOB not in seen
    assert [line["key_name"] for line in lines if line["event"] == "request"] == ["alice"]


async def test_limits_of_a_key(keys_file: str) -> None:
    """Connections at the handshake (429), requests by an error event; another key is not affected."""
    async with serve(keys_file=keys_file) as served:
        async with (
            served.client(additional_headers=bearer(ALICE)) as one,
            served.client(additional_headers=bearer(ALICE)) as two,
        ):
            with pytest.raises(InvalidStatus) as refused:
                await connect(served.url, proxy=None, additional_headers=bearer(ALICE))
            assert refused.value.response.status_code == 429
            assert int(refused.value.response.headers["Retry-After"]) > 0
            async with served.client(additional_headers=bearer(BOB)) as other:
                await generate(one, "a", "hold")
                await generate(two, "b", "hold")
                await served.text.until_live(2)
                await generate(two, "c")
                assert (await collect(two, "c"))["c"][-1]["code"] == "rate_limited"
                await generate(other, "d", max_tokens=1)
                assert (await collect(other, "d"))["d"][-1]["type"] == "done"
            await send(one, type="cancel", id="a")
            await collect(one, "a")
            await generate(two, "c", max_tokens=1)
            assert (await collect(two, "c"))["c"][-1]["type"] == "done"
        await served.text.until_live(0)
        async with served.client(additional_headers=bearer(ALICE)):
            pass


async def test_a_resume_token_is_worth_nothing_to_another_key(keys_file: str) -> None:
    async with serve(keys_file=keys_file) as served, served.client(additional_headers=bearer(ALICE)) as ws:
        await generate(ws, "a", "hold", retain_s=30)
        token = (await receive(ws))["resume"]
        async with served.client(additional_headers=bearer(BOB)) as thief:
            await send(thief, type="resume", id="a", token=token, after=0)
            assert (await receive(thief))["code"] == "resume_unknown"


async def test_the_server_takes_only_so_many_connections() -> None:
    async with serve(max_connections=2) as served:
        async with served.client(), served.client():
            with pytest.raises(InvalidStatus) as refused:
                await connect(served.url, proxy=None)
            assert refused.value.response.status_code == 503
            assert json.loads(refused.value.response.body or b"")["error"]["code"] == "overloaded"
        for _ in range(3):  # handshakes that fail behind the door hold no place for ever
            with pytest.raises(InvalidStatus):
                await connect(served.url, proxy=None, origin="https://evil.example")  # type: ignore[arg-type]
        async with served.client():
            pass


async def test_pages_of_the_api_need_the_key_and_those_of_the_operator_do_not(keys_file: str) -> None:
    async with serve(keys_file=keys_file) as served:
        for path, status in (("/v1/models", 401), ("/health", 200), ("/ready", 200), ("/metrics", 200)):
            assert (await served.http(f"GET {path} HTTP/1.1\nHost: localhost\n"))[0] == status
        head = f"GET /v1/models HTTP/1.1\nHost: localhost\nAuthorization: Bearer {ALICE}\n"
        assert (await served.http(head))[0] == 200


def test_without_a_file_everybody_is_anybody() -> None:
    keys = load_keys(ServerConfig())
    assert not keys.required
    assert keys.find(None) is keys.find("x") is ANYBODY
    assert Keys({}, 1).find("") is ANYBODY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no table"),
        ('alice = "SECRET"', "stands outside a table"),
        ("[alice]", "exactly one of key and sha256"),
        ('[alice]\nkey = "SECRET"\nsha256 = "SECRET"', "exactly one of key and sha256"),
        ('[alice]\nsha256 = "SECRET"', "64 lower-case hexadecimal"),
        ("[alice]\nkey = 7", "alice.key must be a string"),
        ('[alice]\nkey = "SECRET"\ntennant = "x"', "did you mean 'tenant'"),
        ('[alice]\nkey = "SECRET"\nmax_requests = -1', "alice.max_requests = -1"),
        ('[alice\nkey = "SECRET"', r"is not TOML \(line 1\)"),
    ],
)
def test_a_bad_keys_file_stops_the_start_and_shows_no_key(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=expected) as error:
        load_keys(ServerConfig(keys_file=str(file)))
    assert "SECRET" not in str(error.value)
    assert str(file) in str(error.value)


def test_a_missing_keys_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys(ServerConfig(keys_file=str(tmp_path / "none.toml")))
