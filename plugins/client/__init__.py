"""A small asynchronous client of ``llm.v1``: many generations over one connection.

For example::

    async with connect("ws://127.0.0.1:8000") as client:
        async for event in client.generate(prompt="Hi", max_tokens=20):
            ...  # StartFrame, DeltaFrame ..., DoneFrame
"""

from __future__ import annotations

from .client import Generation, LLMClient, ServerError, connect

__all__ = ["Generation", "LLMClient", "ServerError", "connect"]
