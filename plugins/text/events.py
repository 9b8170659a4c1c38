"""What a request's sink is told: accepted, pieces of text, the end.  Exactly one ``Ended`` per request."""

from __future__ import annotations

import msgspec

from ...core.messages import Finish


class Accepted(msgspec.Struct, frozen=True):
    """The engine took the request; tokens may follow."""

    rid: str
    num_prompt_tokens: int


class Delta(msgspec.Struct, frozen=True, gc=False):
    """New text and the ids since the last event; ``text`` may be empty if the ids were asked for."""

    rid: str
    text: str
    token_ids: tuple[int, ...]


class Ended(msgspec.Struct, frozen=True):
    """The end, with the last text and ids (often none) and the usage.  A refusal comes without ``Accepted`` before."""

    rid: str
    text: str
    token_ids: tuple[int, ...]
    finish: Finish


TextEvent = Accepted | Delta | Ended
