"""What a gateway needs from the text edge, and from the session of a wire protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ...core.messages import FinishReason
from ..schema import GenerateRequest
from ..text.events import TextEvent
from ..wire.actions import Action

if TYPE_CHECKING:
    from .generation import Generation


class Holder(Protocol):
    """What a generation is attached to: a connection, or one exchange over HTTP."""

    def poke(self) -> None:
        """There may be something to send."""

    def ended(self, generation: Generation) -> None:
        """It has had its terminal."""

    def forget(self, generation: Generation) -> None:
        """It can't be resumed any more."""


class TextApi(Protocol):
    """Text in, text out.  Called on the event loop's thread; nothing here blocks or waits."""

    def open(
        self,
        request: GenerateRequest,
        sink: Callable[[TextEvent], None],
        *,
        tenant: str | None = None,
        received: float | None = None,
        taken: bool = False,
    ) -> str:
        """Start a generation and return its rid; everything else arrives at ``sink``, one ``Ended`` at the end.

        While the server drains only what was ``taken`` before is started."""

    def cancel(self, rid: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a generation early; its ``Ended`` still comes.  Unknown and finished rids are ignored."""

    def pause(self, rids: Iterable[str]) -> None:
        """Generate no further tokens for these until ``resume``."""

    def resume(self, rids: Iterable[str]) -> None:
        """Generate again."""


class ServerSession(Protocol):
    """One connection's protocol without I/O.  ``num_sources`` answers are not finished."""

    num_sources: int

    @property
    def num_waiting(self) -> int:
        """Requests that the session itself holds back until others have ended."""

    @property
    def backlog_bytes(self) -> int:
        """Replies that wait to be sent."""

    def hello(self) -> bytes | None:
        """What the server says first."""

    def parse(self, text: str | bytes) -> Any:
        """One client frame, completely checked; pure, may run on any thread, never raises."""

    def handle(self, frame: Any) -> list[Action]:
        """Take a parsed frame."""

    def due(self) -> list[Action]:
        """What must be done because a generation has ended."""

    def pop(self) -> bytes | None:
        """The next frame to send."""

    def goaway(self, reason: str, grace_ms: int) -> None:
        """The connection ends soon (``drain`` or ``max_age``): take nothing new."""

    def farewell(self, reason: str) -> None:
        """Queue the last words before a close for this reason."""
