"""The operator's protocol on ``/v1/control``, without sockets: one JSON object in, one JSON object out.

=========  ==============================================  =====================================================
type       fields                                          answer
=========  ==============================================  =====================================================
swap       ``scheduler``: keys of ``[scheduler]``          ``swapped`` with old, new, options, wrap and step
reload                                                     ``swapped``: ``plugins.toml`` was read again
status                                                     ``status`` with ``stats`` and the ``scheduler`` table
hold                                                       ``ok``; nothing new is admitted until ``release``
release                                                    ``ok``
story      ``rid``                                         ``story`` with the journal's ``entries`` about it
=========  ==============================================  =====================================================

What cannot be done answers ``error`` with ``code`` and ``message`` and changes nothing.  Every answer carries the
frame's ``id`` if it had one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ...core.config import SchedulerConfig
from ...core.errors import ClientError, MainspringError, nearest
from ...core.messages import Control as Command
from ..config_file import checked
from ..control import Control
from ..journal import Journal
from ..settings import Config
from .reading import read_object

Answer = dict[str, Any]


class ControlSession:
    """One operator's connection.  ``reread`` returns the configuration file as it is now."""

    def __init__(self, control: Control, journal: Journal, reread: Callable[[], Config] | None = None) -> None:
        self._control, self._journal, self._reread = control, journal, reread
        self._verbs: dict[str, tuple[Callable[[Mapping[str, Any]], Answer], frozenset[str]]] = {
            "swap": (self._swap, frozenset({"scheduler"})),
            "reload": (self._reload, frozenset()),
            "status": (self._status, frozenset()),
            "hold": (lambda _frame: self._admission("hold"), frozenset()),
            "release": (lambda _frame: self._admission("release"), frozenset()),
            "story": (self._story, frozenset({"rid"})),
        }

    def receive(self, text: str) -> bytes:
        """The answer to one frame.  Raises nothing."""
        name: Any = None
        try:
            frame = self._decode(text)
            name = frame.get("id")
            answer = self._verbs[frame["type"]][0](frame)
        except ClientError as error:
            answer = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        except MainspringError as error:
            answer = {"type": "error", "code": "invalid_request", "message": str(error)}
        return msgspec.json.encode(answer | ({} if name is None else {"id": name}), enc_hook=str)

    def _decode(self, text: str) -> dict[str, Any]:
        frame = read_object(text, "the frame")
        if not isinstance(frame.get("type"), str):
            raise ClientError("invalid_request", "a frame has a string type", "type")
        kind = frame["type"]
        if kind not in self._verbs:
            raise ClientError("unknown_event", f"unknown type {kind!r}{nearest(kind, self._verbs)}", "type")
        fields = self._verbs[kind][1]
        for key in frame:
            if key not in fields | {"type", "id"}:
                raise ClientError("unsupported_parameter", f"{kind}: unknown field {key!r}{nearest(key, fields)}", key)
        for key in fields - frame.keys():
            raise ClientError("invalid_request", f"{kind}: {key} is missing", key)
        return frame

    def _swap(self, frame: Mapping[str, Any]) -> Answer:
        """Keys that are not named stay; a new ``use`` starts with default options and no leftovers."""
        changes = frame["scheduler"]
        if not isinstance(changes, dict):
            raise ClientError("invalid_request", "scheduler is an object with keys of [scheduler]", "scheduler")
        table = msgspec.to_builtins(self._control.config.scheduler)
        if changes.get("use", table["use"]) != table["use"]:
            table["options"] = {}
        config = checked({"scheduler": {**table, **changes}}, "swap")
        return self._swapped(config.scheduler)

    def _swapped(self, scheduler: SchedulerConfig) -> Answer:
        return {"type": "swapped", **self._control.swap(scheduler)}

    def _reload(self, frame: Mapping[str, Any]) -> Answer:
        if self._reread is None:
            raise ClientError("invalid_request", "this engine was not started from a configuration file")
        return {"type": "swapped", **self._control.reload(self._reread())}

    def _status(self, frame: Mapping[str, Any]) -> Answer:
        scheduler = msgspec.to_builtins(self._control.config.scheduler)
        return {"type": "status", "stats": self._control.stats(), "scheduler": scheduler}

    def _admission(self, action: str) -> Answer:
        self._control.command(Command(action))
        return {"type": "ok"}

    def _story(self, frame: Mapping[str, Any]) -> Answer:
        return {"type": "story", "rid": frame["rid"], "entries": self._journal.story(str(frame["rid"]))}
