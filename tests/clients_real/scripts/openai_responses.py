"""openai-python over WebSocket, asynchronous and blocking: python openai_responses.py BASE_URL"""

import asyncio
import json
import sys

import openai

TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error", "response.steer.failed")
REQUEST = {"model": "tiny", "input": "hi", "max_output_tokens": 5}


def text_of(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def talk(base):
    """Stream, continue, hear of errors, warm up, use two lanes at once, be refused a steer, stop."""
    seen = {}
    async with openai.AsyncOpenAI(api_key="sk-any", base_url=base) as client:
        async with client.responses.connect() as connection:

            async def read():
                events = []
                async for event in connection:
                    events.append(event)
                    if event.type in TERMINALS:
                        return events
                raise AssertionError("the stream ended without a terminal")

            async def run(**fields):
                await connection.response.create(**{**REQUEST, **fields})
                return await read()

            first = await run()
            seen["text"], seen["types"] = text_of(first), [event.type for event in first]
            seen["output_text"] = first[-1].response.output_text
            seen["output_tokens"] = first[-1].response.usage.output_tokens
            seen["first_id"] = first[-1].response.id
            second = await run(previous_response_id=first[-1].response.id)
            seen["continues"] = second[-1].response.previous_response_id
            (error,) = await run(previous_response_id="resp_nope")
            seen["unknown_parent"] = [error.error.code, error.status]
            warm = await run(generate=False)
            seen["warm"] = [warm[-1].type, warm[-1].response.output]
            seen["lane_of_warm"] = getattr(warm[-1], "stream_id", None)
            for lane in ("a", "b"):
                await connection.response.create(**{**REQUEST, "stream_id": lane, "max_output_tokens": 20})
            both = [*await read(), *await read()]
            seen["lanes"] = [event.stream_id for event in both]
            (refused,) = await run(tools=[{"type": "function", "name": "f", "parameters": {}}])
            seen["tools"] = [refused.error.code, refused.error.param]
            await connection.response.steer(previous_response_id=seen["first_id"], input="no")
            seen["steer"] = (await read())[-1].error.code
            await connection.response.create(**{**REQUEST, "max_output_tokens": 10**6})
            async for event in connection:
                if event.type == "response.output_text.delta":
                    break
            await connection.send_raw(json.dumps({"type": "response.cancel"}))
            cancelled = (await read())[-1]
            seen["cancelled"] = [cancelled.type, cancelled.response.incomplete_details.reason]
        seen["models"] = [model.id async for model in client.models.list()]
    return seen


def talk_blocking(base):
    with openai.OpenAI(api_key="sk-any", base_url=base) as client, client.responses.connect() as connection:
        connection.response.create(**REQUEST)
        events = []
        for event in connection:
            events.append(event)
            if event.type in TERMINALS:
                break
        return text_of(events)


base = sys.argv[1]
print(json.dumps({**asyncio.run(talk(base)), "blocking": talk_blocking(base)}))
