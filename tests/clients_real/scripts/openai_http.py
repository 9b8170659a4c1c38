"""openai-python over HTTP, streaming and not: python openai_http.py BASE_URL"""

import asyncio
import json
import sys

import openai

MESSAGES = [{"role": "user", "content": "hi"}]


async def main(base):
    seen = {}
    async with openai.AsyncOpenAI(api_key="sk-any", base_url=base) as client:
        chat = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=5)
        seen["chat"] = [chat.choices[0].message.content, chat.usage.completion_tokens, chat.choices[0].finish_reason]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=5, **options
            )
        ]
        seen["chunks"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        seen["chunk_usage"] = chunks[-1].usage.completion_tokens
        text = await client.completions.create(model="tiny", prompt="hi", max_tokens=5)
        seen["completion"] = text.choices[0].text
        response = await client.responses.create(model="tiny", input="hi", max_output_tokens=5)
        seen["response"] = response.output_text
        events = await client.responses.create(model="tiny", input="hi", max_output_tokens=5, stream=True)
        seen["events"] = "".join([event.delta async for event in events if event.type == "response.output_text.delta"])
        seen["refused"] = await refusal(
            client.chat.completions.create(model="tiny", messages=MESSAGES, tools=[{"type": "function"}])
        )
        seen["no_model"] = await refusal(client.responses.create(model="other", input="hi"))
        kept = await client.responses.create(model="tiny", input="hi", max_output_tokens=5, store=True)
        seen["stored"] = kept.store
        if kept.store:
            seen["retrieved"] = (await client.responses.retrieve(kept.id)).output_text
            more = await client.responses.create(
                model="tiny", input="and?", max_output_tokens=5, previous_response_id=kept.id
            )
            seen["continued"] = more.previous_response_id == kept.id
            await client.responses.delete(kept.id)
            seen["deleted"] = await refusal(client.responses.retrieve(kept.id))
    print(json.dumps(seen))


async def refusal(call):
    try:
        await call
    except openai.APIStatusError as error:
        return [type(error).__name__, error.code, error.param]
    return None


asyncio.run(main(sys.argv[1]))
