"""A client of ``llm.v1``, asynchronous and blocking: many generations over one connection, resumed when it is lost.

For example::

    async with connect("ws://127.0.0.1:8000") as client:
        async for event in client.generate(prompt="Hi", max_tokens=20, retain_s=60):
            ...  # StartFrame, DeltaFrame ..., DoneFrame
"""

from __future__ import annotations

from .client import Generation, LLMClient, ServerError, connect
from .sync import SyncClient, SyncGeneration, connect_sync

__all__ = ["Generation", "LLMClient", "ServerError", "SyncClient", "SyncGeneration", "connect", "connect_sync"]
