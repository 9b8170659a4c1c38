"""Errors as the protocols write them; the codes and what they mean are in ``core.errors``."""

from __future__ import annotations

from typing import Any

from ...core.errors import ERROR_KINDS, ClientError
from ...core.messages import Finish, FinishReason
from .actions import Action, Close
from .reading import MAX_SHOWN

MAX_BAD_FRAMES = 10  # in a row, then the connection is closed


def failure_of(finish: Finish, rid: str) -> ClientError:
    """Why a generation ended without success; one that is our fault names the request."""
    if finish.reason is FinishReason.DEADLINE:
        return ClientError("deadline_exceeded", "the deadline passed before the engine could start", "deadline_ms")
    failure = finish.failure
    if failure is None:
        return ClientError("server_error", f"the engine failed (request {rid})")
    mine = ERROR_KINDS[failure.code].fault == "engine"
    return ClientError(failure.code, f"{failure.message} (request {rid})" if mine else failure.message, failure.param)


def model_not_found(model: str, names: tuple[str, ...], param: str = "model") -> ClientError:
    """``model`` is none of the served ``names``."""
    text = f"model {model[:MAX_SHOWN]!r} is not served here (valid: {', '.join(names)})"
    return ClientError("model_not_found", text, param)


def response_not_found(response_id: str) -> ClientError:
    """No response of this id is stored for who asks."""
    text = f"no response with the id {response_id[:MAX_SHOWN]!r} is stored"
    return ClientError("not_found", text, "response_id")


def error_object(error: ClientError) -> dict[str, Any]:
    """How the OpenAI APIs write an error, over HTTP and in events."""
    status = error.kind.status
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    return {"type": kind, "code": error.code, "message": error.message, "param": error.param}


class BadFrames:
    """Counts frames that mean nothing: a peer that sends many of them in a row is not one of ours."""

    def __init__(self) -> None:
        self._count = 0

    def good(self) -> None:
        """One that means something; the count starts anew."""
        self._count = 0

    def bad(self, error: ClientError) -> list[Action]:
        """One more; the close that follows from it, if it is one too many."""
        self._count += 1
        if self._count < MAX_BAD_FRAMES:
            return []
        return [Close(1008, f"{MAX_BAD_FRAMES} bad frames in a row, the last: {error.code}")]
