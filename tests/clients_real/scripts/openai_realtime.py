"""openai-python, Realtime API, text only: python openai_realtime.py BASE_URL"""

import asyncio
import json
import sys

import openai


async def main(base):
    seen = {}
    client = openai.AsyncOpenAI(api_key="sk-any", base_url=base)
    async with client, client.realtime.connect(model="tiny") as connection:
        events = []

        async def until(kind):
            async for event in connection:
                events.append(event)
                if event.type == kind:
                    return event
            raise AssertionError(kind)

        session = {"type": "realtime", "output_modalities": ["text"], "instructions": "be brief"}
        await connection.session.update(session=session)
        content = [{"type": "input_text", "text": "hi"}]
        await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await connection.response.create(response={"max_output_tokens": 5})
        done = await until("response.done")
        seen["text"] = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        seen["done"] = [done.response.status, done.response.usage.output_tokens]
        seen["types"] = sorted({event.type for event in events})
        await connection.response.create()
        await until("response.output_text.delta")
        await connection.response.cancel()
        seen["cancelled"] = (await until("response.done")).response.status
        await connection.response.cancel()
        seen["nothing_to_cancel"] = (await until("error")).error.code
    print(json.dumps(seen))


asyncio.run(main(sys.argv[1]))
