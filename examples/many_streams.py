"""Several generations at once over one connection to a running server (``make run``); the last one is cancelled."""

from __future__ import annotations

import asyncio
import sys

from mainspring.plugins.client import LLMClient, connect
from mainspring.plugins.wire.llm_v1_frames import DeltaFrame

PROMPTS = ["The sea is", "Two plus two is", "Count for ever: one, two,"]


async def follow(client: LLMClient, prompt: str, most_deltas: int) -> str:
    """The answer to ``prompt``, cut off after ``most_deltas`` pieces of text."""
    parts = []
    generation = client.generate(prompt=prompt, max_tokens=200 if most_deltas < 20 else 16, ignore_eos=True)
    async for event in generation:
        if isinstance(event, DeltaFrame):
            parts.append(event.text)
            if len(parts) == most_deltas:
                await generation.cancel()
    assert generation.done is not None
    return f"{prompt!r} -> {''.join(parts)!r} [{generation.done.reason}]"


async def main(url: str) -> None:
    async with connect(url) as client:
        print(f"{', '.join(client.hello.models)} at {url}")
        limits = [1000, 1000, 5]
        for line in await asyncio.gather(*(follow(client, *pair) for pair in zip(PROMPTS, limits, strict=True))):
            print(line)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8000"))
