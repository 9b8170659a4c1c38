"""openai-python whose server restarts in the middle: python openai_reconnect.py BASE_URL

Prints "streaming" when it should happen, then what was seen by a connection that reconnects and by one that does not.
"""

import asyncio
import json
import sys

import openai

REQUEST = {"model": "tiny", "input": "hi"}


async def without(client, ready):
    """An exception, never a clean end."""
    seen = []
    try:
        async with client.responses.connect() as connection:
            await connection.response.create(**REQUEST, max_output_tokens=10**6)
            async for event in connection:
                seen.append(event.type)
                if seen.count("response.output_text.delta") == 1:
                    ready.set()
    except Exception as error:  # noqa: BLE001 - which one is the question
        return {"last": seen[-1], "error": str(error)}
    return {"last": seen[-1], "error": ""}


async def reconnecting(client, ready):
    """A new connection by itself, on which the next request is answered."""
    codes, seen, sends = [], [], []

    def on_reconnecting(event):
        codes.append(event.close_code)
        sends.append(asyncio.create_task(connection.response.create(**REQUEST, max_output_tokens=5)))

    async with client.responses.connect(on_reconnecting=on_reconnecting) as connection:
        await connection.response.create(**REQUEST, max_output_tokens=10**6)
        async for event in connection:
            seen.append(event.type)
            if seen.count("response.output_text.delta") == 1:
                ready.set()
            if seen.count("response.incomplete") == 2:  # the terminal that a drain gives, and that of the second
                break
        await asyncio.gather(*sends)
    return {"codes": codes, "incomplete": seen.count("response.incomplete")}


async def main(base):
    async with openai.AsyncOpenAI(api_key="sk-any", base_url=base) as client:
        ready = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(without(client, ready[0])), asyncio.create_task(reconnecting(client, ready[1]))]
        for one in ready:
            await one.wait()
        print("streaming", flush=True)
        print(json.dumps(await asyncio.gather(*tasks)))


asyncio.run(main(sys.argv[1]))
