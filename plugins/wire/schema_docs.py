"""JSON Schemas of every message, as published in docs/: ``python -m mainspring.plugins.wire.schema_docs FOLDER``.

The tests compare the files with this, and every frame they see with the files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from ..schema import GenerateRequest
from .llm_v1_frames import ServerFrame
from .llm_v1_requests import MAX_COALESCE_MS, MAX_ID_CHARS, MAX_TOKEN_CHARS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}
ID = {"type": "string", "pattern": f"^[A-Za-z0-9_.-]{{1,{MAX_ID_CHARS}}}$"}
LANE = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,256}$"}


def record(required: dict[str, Any], optional: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An object with these properties."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required), **more}


def array(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def llm_v1() -> dict[str, Any]:
    """Both directions of the native protocol."""
    _, parts = msgspec.json.schema_components([ServerFrame, GenerateRequest], ref_template="#/$defs/{name}")
    request = parts.pop("GenerateRequest")["properties"]
    request.pop("extra")
    request["stop"] = {"anyOf": [STRING, array(STRING)]}
    options = {
        "model": nullable(STRING),
        "retain_s": {"type": "number", "minimum": 0},
        "progress": BOOLEAN,
        "coalesce_ms": {"type": "number", "minimum": 0, "maximum": MAX_COALESCE_MS},
    }
    client = {
        "generate": record({"type": {"const": "generate"}, "id": ID}, {**request, **options}),
        "resume": record(
            {
                "type": {"const": "resume"},
                "id": ID,
                "token": {"type": "string", "minLength": 1, "maxLength": MAX_TOKEN_CHARS},
                "after": {"type": "integer", "minimum": -1},
            },
            additionalProperties=False,
        ),
        "cancel": record({"type": {"const": "cancel"}, "id": ID}, additionalProperties=False),
        "ping": record({"type": {"const": "ping"}}, additionalProperties=True),
    }
    parts["PongFrame"]["additionalProperties"] = True
    frames = [name for name in parts if name.endswith("Frame")]
    return {
        "$schema": DIALECT,
        "title": "llm.v1",
        "$defs": {
            "server": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in frames]},
            "client": {"anyOf": [{"$ref": f"#/$defs/client.{name}"} for name in client]},
            **parts,
            **{f"client.{name}": schema for name, schema in client.items()},
        },
    }


def responses() -> dict[str, Any]:
    """The server's events of the Responses API over WebSocket."""
    place = {"item_id": STRING, "output_index": INTEGER, "content_index": INTEGER}
    part = record({"type": {"const": "output_text"}, "text": STRING, "annotations": array({}), "logprobs": array({})})
    item = record(
        {
            "id": STRING,
            "type": {"const": "message"},
            "status": {"enum": ["in_progress", "completed", "incomplete"]},
            "role": {"const": "assistant"},
            "content": array({"$ref": "#/$defs/part"}),
        }
    )
    usage = record(
        {
            "input_tokens": INTEGER,
            "input_tokens_details": record({"cached_tokens": INTEGER, "cache_write_tokens": INTEGER}),
            "output_tokens": INTEGER,
            "output_tokens_details": record({"reasoning_tokens": INTEGER}),
            "total_tokens": INTEGER,
        }
    )
    response = record(
        {
            "id": STRING,
            "object": {"const": "response"},
            "created_at": INTEGER,
            "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
            "completed_at": nullable(INTEGER),
            "error": nullable(record({"code": STRING, "message": STRING})),
            "incomplete_details": nullable(record({"reason": STRING})),
            "model": STRING,
            "output": array({"$ref": "#/$defs/item"}),
            "usage": nullable({"$ref": "#/$defs/usage"}),
            "parallel_tool_calls": BOOLEAN,
            "tool_choice": STRING,
            "tools": array({}),
            "text": record({"format": record({"type": {"const": "text"}})}),
            "reasoning": record({"effort": {"type": "null"}, "summary": {"type": "null"}}),
            "truncation": {"const": "disabled"},
            "store": BOOLEAN,
            "background": BOOLEAN,
            "service_tier": STRING,
            "presence_penalty": NUMBER,
            "frequency_penalty": NUMBER,
            "top_logprobs": INTEGER,
            "max_tool_calls": {"type": "null"},
            "metadata": {"type": "object", "additionalProperties": STRING},
            "temperature": NUMBER,
            "top_p": NUMBER,
            "max_output_tokens": nullable(INTEGER),
            "instructions": nullable(STRING),
            "previous_response_id": nullable(STRING),
            "user": nullable(STRING),
            "prompt_cache_key": nullable(STRING),
            "safety_identifier": nullable(STRING),
        },
        {"timing": {"type": "object", "additionalProperties": NUMBER}},
    )
    whole, error = {"response": {"$ref": "#/$defs/response"}}, {"type": STRING, "code": STRING, "message": STRING}
    bodies: dict[str, dict[str, Any]] = {
        "response.created": whole,
        "response.in_progress": whole,
        "response.output_item.added": {"output_index": INTEGER, "item": {"$ref": "#/$defs/item"}},
        "response.content_part.added": {**place, "part": {"$ref": "#/$defs/part"}},
        "response.output_text.delta": {**place, "delta": STRING, "logprobs": array({})},
        "response.output_text.done": {**place, "text": STRING, "logprobs": array({})},
        "response.content_part.done": {**place, "part": {"$ref": "#/$defs/part"}},
        "response.output_item.done": {"output_index": INTEGER, "item": {"$ref": "#/$defs/item"}},
        "response.completed": whole,
        "response.incomplete": whole,
        "response.failed": whole,
        "response.steer.failed": {
            "error": record(error),
            "steer": record({"input": {}, "previous_response_id": {}}),
        },
    }
    events = {
        kind: record({"type": {"const": kind}, "sequence_number": INTEGER, **body}, {"stream_id": LANE})
        for kind, body in bodies.items()
    }
    events["error"] = record(
        {"type": {"const": "error"}, "status": INTEGER, "error": record({**error, "param": nullable(STRING)})},
        {"stream_id": LANE},
    )
    return {
        "$schema": DIALECT,
        "title": "Responses API over WebSocket, server events",
        "$defs": {
            "server": {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in events]},
            "part": part,
            "item": item,
            "usage": usage,
            "response": response,
            **events,
        },
    }


def realtime() -> dict[str, Any]:
    """The server's events of the Realtime API, text only."""
    place = {"response_id": STRING, "item_id": STRING, "output_index": INTEGER, "content_index": INTEGER}
    text = record({"type": {"enum": ["input_text", "output_text"]}, "text": STRING})
    item = record(
        {
            "id": STRING,
            "object": {"const": "realtime.item"},
            "type": {"const": "message"},
            "status": {"enum": ["in_progress", "completed", "incomplete"]},
            "role": {"enum": ["user", "assistant", "system"]},
            "content": array(text),
        }
    )
    response = record(
        {
            "id": STRING,
            "object": {"const": "realtime.response"},
            "status": {"enum": ["in_progress", "completed", "incomplete", "cancelled", "failed"]},
            "status_details": nullable({"type": "object", "additionalProperties": {}}),
            "output": array({"$ref": "#/$defs/item"}),
            "usage": nullable(record({"input_tokens": INTEGER, "output_tokens": INTEGER, "total_tokens": INTEGER})),
            "metadata": nullable({"type": "object", "additionalProperties": {}}),
            "conversation_id": nullable(STRING),
            "output_modalities": array(STRING),
        }
    )
    session = record(
        {
            "id": STRING,
            "object": {"const": "realtime.session"},
            "type": {"const": "realtime"},
            "model": STRING,
            "output_modalities": array(STRING),
            "instructions": STRING,
            "max_output_tokens": {"anyOf": [INTEGER, {"const": "inf"}]},
            "tools": array({}),
            "tool_choice": STRING,
        }
    )
    whole = {"response": {"$ref": "#/$defs/response"}}
    in_list = {"previous_item_id": nullable(STRING), "item": {"$ref": "#/$defs/item"}}
    in_response = {"response_id": STRING, "output_index": INTEGER, "item": {"$ref": "#/$defs/item"}}
    part = {"part": record({"type": {"const": "text"}, "text": STRING})}
    fault = {"type": STRING, "code": STRING, "message": STRING, "param": nullable(STRING), "event_id": nullable(STRING)}
    bodies: dict[str, dict[str, Any]] = {
        "session.created": {"session": {"$ref": "#/$defs/session"}},
        "session.updated": {"session": {"$ref": "#/$defs/session"}},
        "conversation.item.added": in_list,
        "conversation.item.done": in_list,
        "conversation.item.deleted": {"item_id": STRING},
        "conversation.item.retrieved": {"item": {"$ref": "#/$defs/item"}},
        "response.created": whole,
        "response.output_item.added": in_response,
        "response.content_part.added": {**place, **part},
        "response.output_text.delta": {**place, "delta": STRING},
        "response.output_text.done": {**place, "text": STRING},
        "response.content_part.done": {**place, **part},
        "response.output_item.done": in_response,
        "response.done": whole,
        "error": {"error": record(fault)},
    }
    events = {kind: record({"type": {"const": kind}, "event_id": STRING, **body}) for kind, body in bodies.items()}
    return {
        "$schema": DIALECT,
        "title": "Realtime API, text only, server events",
        "$defs": {
            "server": {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in events]},
            "item": item,
            "response": response,
            "session": session,
            **events,
        },
    }


FILES = {"llm.v1.schema.json": llm_v1, "responses.schema.json": responses, "realtime.schema.json": realtime}


def write(folder: Path) -> None:
    """Write every schema into ``folder``."""
    for name, make in FILES.items():
        (folder / name).write_text(render(make()), encoding="utf-8")


def render(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
