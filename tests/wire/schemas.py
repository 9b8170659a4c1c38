"""Checks frames against the published schemas: the part of JSON Schema that they use, and no field unmentioned."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class Schema:
    """One file."""

    def __init__(self, name: str) -> None:
        self._root = json.loads((DOCS / name).read_text(encoding="utf-8"))

    def check(self, frame: Any, side: str = "server") -> None:
        """Raises AssertionError if ``frame`` is none that this side may send."""
        found = [fault for fault in (self._fault(frame, option) for option in self._options(side)) if fault != ""]
        assert len(found) < len(self._options(side)), f"{frame}: {found}"

    def _options(self, side: str) -> list[dict[str, Any]]:
        options: list[dict[str, Any]] = self._root["$defs"][side]["anyOf"]
        return options

    def _fault(self, value: Any, schema: dict[str, Any], where: str = "") -> str:
        """What is wrong with it, or ``""``."""
        if (ref := schema.get("$ref")) is not None:
            return self._fault(value, self._root["$defs"][ref.removeprefix("#/$defs/")], where)
        if "anyOf" in schema:
            faults = [self._fault(value, option, where) for option in schema["anyOf"]]
            return "" if "" in faults else "; ".join(faults)
        if "const" in schema and value != schema["const"]:
            return f"{where} is not {schema['const']!r}"
        if "enum" in schema and value not in schema["enum"]:
            return f"{where} is none of {schema['enum']}"
        kind = schema.get("type")
        if kind is not None and (
            not isinstance(value, _TYPES[kind]) or (kind != "boolean" and isinstance(value, bool))
        ):
            return f"{where} is no {kind}"
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            return f"{where} does not match"
        if "minimum" in schema and value < schema["minimum"]:
            return f"{where} is too small"
        if kind == "array":
            return next(filter(None, (self._fault(one, schema["items"], where + "[]") for one in value)), "")
        return self._object_fault(value, schema, where) if kind == "object" else ""

    def _object_fault(self, value: dict[str, Any], schema: dict[str, Any], where: str) -> str:
        for name in schema.get("required", ()):
            if name not in value:
                return f"{where}.{name} is missing"
        known, others = schema.get("properties", {}), schema.get("additionalProperties", False)
        for name, inner in value.items():
            if name not in known and others is False:
                return f"{where}.{name} is not mentioned"
            rule = known.get(name, others)
            if isinstance(rule, dict) and rule and (fault := self._fault(inner, rule, f"{where}.{name}")):
                return fault
        return ""


NATIVE = Schema("llm.v1.schema.json")
RESPONSES = Schema("responses.schema.json")
REALTIME = Schema("realtime.schema.json")


def check_server_frame(frame: dict[str, Any]) -> None:
    """Whichever protocol it belongs to."""
    if "event_id" in frame and frame["type"] != "pong":
        REALTIME.check(frame)
    else:
        schema = RESPONSES if frame["type"].startswith("response.") or "error" in frame else NATIVE
        schema.check(frame)
