"""The websockets package as a client, blocking and asynchronous: python plain_websockets.py URL"""

import asyncio
import json
import sys

import websockets
from websockets.asyncio.client import connect
from websockets.sync.client import connect as connect_blocking

FRAME = json.dumps({"type": "generate", "id": "1", "prompt": "Hi", "max_tokens": 5})


def blocking(url):
    text = ""
    with connect_blocking(url) as ws:
        ws.send(FRAME)
        for raw in ws:
            frame = json.loads(raw)
            if frame["type"] == "delta":
                text += frame["text"]
            elif frame["type"] in ("done", "error"):
                break
    return text


async def asynchronous(url):
    text = ""
    async with connect(url) as ws:
        await ws.send(FRAME)
        async for raw in ws:
            frame = json.loads(raw)
            if frame["type"] == "delta":
                text += frame["text"]
            elif frame["type"] in ("done", "error"):
                break
    return text


url = sys.argv[1]
seen = {"blocking": blocking(url), "asynchronous": asyncio.run(asynchronous(url))}
print(json.dumps({**seen, "version": websockets.__version__}))
