"""What the connections of one gateway share: the way to the engine, limits, retained streams, counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.edge import KernelPort
from ...core.messages import StepPlan
from ..settings import ServerConfig
from ..wire.responses_history import ResponseStore
from .admission import Admission
from .api import TextApi
from .shelf import Shelf
from .turns import Turns

if TYPE_CHECKING:
    from .generation import Generation


class Hub:
    """``watchers`` are the generations, by rid, that tell their client how far the prompt is."""

    def __init__(self, text: TextApi, port: KernelPort, server: ServerConfig) -> None:
        self.text, self.port, self.server = text, port, server
        self.admission = Admission(server)
        self.turns = Turns()
        self.shelf = Shelf(server.max_retained_per_key)
        self.responses = ResponseStore(server.response_store_bytes)
        self.watchers: dict[str, Generation] = {}
        self.num_paused = 0
        self.num_slow_closed = 0  # connections cut because the peer did not read

    def on_plan(self, plan: StepPlan) -> None:
        """Prompt progress of those who asked for it."""
        if self.watchers:
            for started in plan.started:
                if watcher := self.watchers.get(started.rid):
                    watcher.prefill(started.num_cached_tokens, started.num_prompt_tokens)
            for row in plan.rows:
                if watcher := self.watchers.get(row.rid):
                    watcher.prefill(row.start + row.count, None)
