"""The unmodified openai-python package against the POST surfaces; skipped where it or the extra is not installed."""

from __future__ import annotations

import pytest

from ..gateways.fakes import PIECES, serve

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.anyio
WHOLE = "".join(PIECES)


async def test_chat_completions_and_responses_streamed_and_not() -> None:
    from mainspring.plugins.gateways.http import HttpGateway

    async with serve(kind=HttpGateway) as served:
        client = openai.AsyncOpenAI(api_key="sk-any", base_url=f"http://127.0.0.1:{served.gateway.port}/v1")
        messages = [{"role": "user", "content": "hi"}]
        chat = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=5)
        assert (chat.choices[0].message.content, chat.usage.completion_tokens) == (WHOLE, 5)
        stream = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=5, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == WHOLE
        text = await client.completions.create(model="tiny", prompt="hi", max_tokens=5)
        assert text.choices[0].text == WHOLE
        response = await client.responses.create(model="tiny", input="hi", max_output_tokens=5)
        assert response.output_text == WHOLE
        events = await client.responses.create(model="tiny", input="hi", max_output_tokens=5, stream=True)
        deltas = [event.delta async for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == WHOLE
        with pytest.raises(openai.BadRequestError, match="tools"):
            await client.chat.completions.create(model="tiny", messages=messages, tools=[{"type": "function"}])
        await client.close()
