"""The engine in this process: a question, answered as text comes; then several prompts together."""

from __future__ import annotations

import asyncio

from mainspring import Engine
from mainspring.plugins.engine import Delta, Ended

QUESTION = {
    "messages": [{"role": "user", "content": "What is gravity?"}],
    "temperature": 0,
    "max_tokens": 21,
}
PROMPTS = ["The sea is", "Two plus two is", "Once upon a time"]


async def main() -> None:
    async with Engine() as engine:
        async for event in engine.stream(QUESTION):
            if isinstance(event, Delta | Ended):
                print(event.text, end="", flush=True)
        print()

        requests = [{"prompt": prompt, "max_tokens": 8, "seed": 1} for prompt in PROMPTS]
        results = await asyncio.gather(*(engine.generate(request) for request in requests))
        for prompt, result in zip(PROMPTS, results, strict=True):
            print(f"{prompt!r} -> {result.text!r} ({result.usage.output} tokens, {result.finish_reason})")


if __name__ == "__main__":
    asyncio.run(main())
