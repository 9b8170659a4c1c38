"""The client library: ``from mainspring.client import connect``.  It loads no model and needs no engine."""

from __future__ import annotations

from .plugins.client import Generation, LLMClient, ServerError, SyncClient, SyncGeneration, connect, connect_sync
from .plugins.wire.llm_v1_frames import DeltaFrame, DoneFrame, HelloFrame, ProgressFrame, StartFrame

__all__ = [
    "DeltaFrame",
    "DoneFrame",
    "Generation",
    "HelloFrame",
    "LLMClient",
    "ProgressFrame",
    "ServerError",
    "StartFrame",
    "SyncClient",
    "SyncGeneration",
    "connect",
    "connect_sync",
]
