"""Stream text from a running server: python stream.py [URL]"""

import asyncio
import json
import sys

from websockets.asyncio.client import connect


async def main(url: str) -> None:
    async with connect(url) as ws:
        await ws.send(
            json.dumps({"type": "generate", "id": "1", "prompt": "The capital of France is", "max_tokens": 16})
        )
        async for raw in ws:
            frame = json.loads(raw)
            if frame["type"] == "delta":
                print(frame["text"], end="", flush=True)
            elif frame["type"] in ("done", "error"):
                print()
                break


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8000/v1/stream"))
