"""Who writes when: connections in turns, a batch each, and what comes meanwhile is not held up."""

from __future__ import annotations

import asyncio

import pytest
from websockets.frames import Frame, Opcode

from mainspring.plugins.gateways import connection, turns
from mainspring.plugins.gateways.guarded import head_of
from mainspring.plugins.gateways.turns import Turns

from .fakes import collect, generate, receive, send, serve, text_of

pytestmark = pytest.mark.anyio


class Writer:
    """Has ``batches`` to send, and writes down when it has sent one."""

    def __init__(self, name: str, batches: int, log: list[str]) -> None:
        self.name, self.batches, self.log = name, batches, log

    def write(self) -> bool:
        self.log.append(self.name)
        self.batches -= 1
        return self.batches > 0


async def test_a_batch_each_in_the_order_in_which_they_came() -> None:
    log: list[str] = []
    queue = Turns()
    for writer in (Writer("a", 3, log), Writer("b", 1, log), Writer("c", 2, log)):
        queue.add(writer)
    assert log == []  # not within whoever has something to send
    await asyncio.sleep(0)
    assert log == ["a", "b", "c", "a", "c", "a"]


async def test_a_long_queue_lets_the_loop_see_what_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step's result waits for a slice, not for everybody's write."""
    monkeypatch.setattr(turns, "SLICE_S", 0.0)
    log: list[str] = []
    queue = Turns()
    for name in "abc":
        queue.add(Writer(name, 1, log))
    for name in ("1", "2", "3"):
        await asyncio.sleep(0)
        log.append(name)
    assert log == ["a", "1", "b", "2", "c", "3"]


async def test_one_that_raises_takes_no_turn_from_the_others() -> None:
    class Broken(Writer):
        def write(self) -> bool:
            raise ValueError("no")

    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context["exception"]))
    log: list[str] = []
    queue = Turns()
    for writer in (Writer("a", 1, log), Broken("b", 1, log), Writer("c", 1, log)):
        queue.add(writer)
    for _ in range(3):
        await asyncio.sleep(0)
    assert (log, [str(fault) for fault in faults]) == (["a", "c"], ["no"])
    queue.add(Writer("later", 1, log))
    await asyncio.sleep(0)
    assert log[-1] == "later"


@pytest.mark.parametrize("size", [0, 1, 125, 126, 2**16 - 1, 2**16, 2**16 + 1])
def test_heads_of_frames(size: int) -> None:
    text = b"x" * size
    assert head_of(size) + text == Frame(Opcode.TEXT, text).serialize(mask=False)


async def test_a_server_behind_its_pace_sends_fewer_and_longer_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection is written in each round of the loop and every stream gets a token in it: nothing is lost, the
    tokens of the rounds that a connection has waited come together."""
    monkeypatch.setattr(turns, "SLICE_S", 0.0)
    num_tokens, count = 300, 10
    async with serve(token_s=0) as served:

        async def play() -> list[dict[str, object]]:
            async with served.client() as ws:
                await generate(ws, "a", max_tokens=num_tokens)
                return (await collect(ws, "a"))["a"]

        answers = await asyncio.gather(*(play() for _ in range(count)))
    assert len({text_of(frames) for frames in answers}) == 1
    for frames in answers:
        deltas = [frame["n"] for frame in frames if frame["type"] == "delta"]
        assert sum(int(str(number)) for number in deltas) == num_tokens
        assert len(deltas) < num_tokens / 2


async def test_frames_of_one_connection_share_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pings come in one read, their answers leave in few writes, each in order and none twice."""
    async with serve() as served, served.client() as ws:
        (one,) = served.gateway._connections
        sizes: list[int] = []
        write = one._ws.write_texts

        def counting(texts: list[bytes]) -> bool:
            sizes.append(len(texts))
            return write(texts)

        monkeypatch.setattr(one._ws, "write_texts", counting)
        for number in range(200):
            await send(ws, type="ping", number=number)
        assert [(await receive(ws))["number"] for _ in range(200)] == list(range(200))
        assert sum(sizes) == 200 > 2 * len(sizes)


async def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection with much to send gives way to others after each batch."""
    monkeypatch.setattr(connection, "BATCH_BYTES", 100)
    async with serve() as served, served.client():
        (one,) = served.gateway._connections
        for _ in range(10):
            one._session.queue(b'{"type":"pong","x":"' + b"x" * 60 + b'"}')  # type: ignore[attr-defined]
        assert [len(one._batch()[0]) for _ in range(6)] == [2, 2, 2, 2, 2, 0]


async def test_idle_connections_have_no_task_besides_their_reader() -> None:
    """B8: memory of an idle connection."""
    async with serve() as served, served.client():
        before = len(asyncio.all_tasks())
        async with served.client() as ws:
            await send(ws, type="ping")
            assert (await receive(ws))["type"] == "pong"
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert not [name for name in names if name.startswith("ws-")]
            # The server's reader; keepalive of either side and the client's own are the library's.
            assert len(names) - before <= 4
