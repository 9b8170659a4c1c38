"""What a gateway needs from the text edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...core.messages import FinishReason
from ..schema import GenerateRequest
from ..text.events import TextEvent


class TextApi(Protocol):
    """Text in, text out.  Called on the event loop's thread; nothing here blocks or waits."""

    def open(
        self,
        request: GenerateRequest,
        sink: Callable[[TextEvent], None],
        *,
        tenant: str | None = None,
        received: float | None = None,
    ) -> str:
        """Start a generation and return its rid; everything else arrives at ``sink``, one ``Ended`` at the end."""

    def cancel(self, rid: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a generation early; its ``Ended`` still comes.  Unknown and finished rids are ignored."""
