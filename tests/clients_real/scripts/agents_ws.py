"""openai-agents over WebSocket: two turns on one connection, run and streamed: python agents_ws.py BASE_URL"""

import asyncio
import json
import sys

from agents import Agent, ModelSettings, Runner, set_tracing_disabled
from agents.models.openai_responses import OpenAIResponsesWSModel
from openai import AsyncOpenAI


async def main(base):
    set_tracing_disabled(True)
    model = OpenAIResponsesWSModel("tiny", AsyncOpenAI(api_key="sk-any", base_url=base))
    agent = Agent("one", instructions="be brief", model=model, model_settings=ModelSettings(max_tokens=5))
    first = await Runner.run(agent, "hi")
    second = Runner.run_streamed(agent, [*first.to_input_list(), {"role": "user", "content": "and?"}])
    raw = [event.data async for event in second.stream_events() if event.type == "raw_response_event"]
    deltas = [data.delta for data in raw if data.type == "response.output_text.delta"]
    seen = {"first": first.final_output, "deltas": "".join(deltas), "second": second.final_output}
    seen["output_tokens"] = first.context_wrapper.usage.output_tokens
    try:
        await Runner.run(agent, "hi", previous_response_id="resp_nope")
    except Exception as error:  # noqa: BLE001 - which one is the question
        seen["unknown_parent"] = getattr(error, "code", str(error))
    await model.close()
    print(json.dumps(seen))


asyncio.run(main(sys.argv[1]))
