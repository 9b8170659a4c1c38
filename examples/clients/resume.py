"""The client library: an answer that survives a lost connection.  python resume.py [URL]"""

import asyncio
import sys

from mainspring.client import DeltaFrame, connect


async def main(url: str) -> None:
    async with connect(url) as client:
        async for event in client.generate(prompt="The capital of France is", max_tokens=16, retain_s=60):
            if isinstance(event, DeltaFrame):
                print(event.text, end="", flush=True)
        print()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8000"))
