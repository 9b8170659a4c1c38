"""What a protocol's session asks the gateway to do after it has read a frame."""

from __future__ import annotations

from typing import NamedTuple

from .outbox import Source


class Generate(NamedTuple):
    """Hand ``stream.request`` to the text edge and its events to ``stream.event``.

    ``received`` and ``num_bytes``: of the frame that asked for it, if that was not the one just handled.
    """

    stream: Source
    received: float | None = None
    num_bytes: int | None = None


class Cancel(NamedTuple):
    """Cancel this live stream; its terminal comes as an event like any other."""

    stream: Source


class Resume(NamedTuple):
    """Attach the retained stream of ``token`` behind its frame ``after``, or refuse."""

    id: str
    token: str
    after: int


class Close(NamedTuple):
    """Send what is waiting, then close the connection."""

    code: int
    reason: str


Action = Generate | Cancel | Resume | Close
