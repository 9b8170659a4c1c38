"""While a prompt as long as the context prefills: does ``/health`` answer, do other streams go on?

Prints the latency of ``GET /health`` (goal: p99 under 100 ms) and the tokens that a second stream got meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from mainspring import Engine
from mainspring.plugins.config_file import load
from mainspring.plugins.text.events import Delta, Ended

PERIOD_S = 0.05


async def health(port: int) -> float:
    """Seconds of one request on a connection of its own."""
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    status = await reader.readline()
    await reader.read()
    writer.close()
    assert b" 200 " in status, status
    return time.perf_counter() - start


async def measure(num_prompt: int) -> None:
    config = load(None, ["server.port=0", "journal.path=", f"scheduler.token_budget={256}"]).config
    async with Engine(config, gateways=True) as engine:
        length = min(num_prompt or engine.kernel.info.max_context - 2, engine.kernel.info.max_context - 2)
        tokens_meanwhile, latencies = 0, list[float]()

        async def stream() -> None:
            nonlocal tokens_meanwhile
            async for event in engine.stream({"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "seed": 1}):
                if isinstance(event, Delta):
                    tokens_meanwhile += len(event.token_ids)

        other = asyncio.create_task(stream())
        await asyncio.sleep(0.5)
        tokens_meanwhile = 0
        start = time.perf_counter()
        big = asyncio.create_task(anext_end(engine, length))
        while not big.done():
            latencies.append(await health(engine.gateways[0].port))
            await asyncio.sleep(PERIOD_S)
        seconds = time.perf_counter() - start
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        cuts = statistics.quantiles(latencies, n=100)
        print(f"prefill of {length} tokens: {seconds:.1f} s, {length / seconds:.0f} tokens/s")
        print(f"GET /health, {len(latencies)} times: p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms")
        print(f"another stream got {tokens_meanwhile} tokens meanwhile, {tokens_meanwhile / seconds:.1f} tokens/s")


async def anext_end(engine: Engine, length: int) -> None:
    request = {"token_ids": [1 + index % 1000 for index in range(length)], "max_tokens": 1, "ignore_eos": True}
    async for event in engine.stream(request):
        if isinstance(event, Ended):
            assert event.finish.failure is None, event.finish.failure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=0, help="0: the whole context")
    asyncio.run(measure(parser.parse_args().prompt_tokens))


if __name__ == "__main__":
    main()
