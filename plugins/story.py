"""The life of one request, told from its journal entries: the eight steps, and what six points observed on the way.

Pure functions on the dicts that ``core.journal`` writes; times are seconds on the clock of the process that wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Entry = Mapping[str, Any]

#: The eight steps of a request's life, by number.
STEPS = {
    1: "gateway",
    2: "host",
    3: "plan",
    4: "allocator",
    5: "sampler",
    6: "executor",
    7: "result",
    8: "text",
}
#: Which step a message type belongs to.  The executor's own step is told from the times in ``StepResult``.
_STEP_OF = {"Submit": 2, "StepPlan": 3, "StepGrant": 4, "StepLaunch": 5, "StepResult": 7, "Emit": 8, "Stop": 8}
_GATEWAY = frozenset({"Cancel", "Pause", "Resume"})
_TOKENS_IN, _TOKENS_OUT, _FIRST_TOKEN = "num_prompt_tokens", "num_output_tokens", "first_token_s"


class Line(NamedTuple):
    """One line of the story: seconds since the first, step of life (0: none of the eight), where, and what happened."""

    seconds: float
    number: int
    where: str
    what: str


def tell(entries: Sequence[Entry], rid: str) -> list[Line]:
    """The lines of ``rid``'s story in order of time."""
    if not entries:
        return []
    lines: list[tuple[float, int, str]] = []
    for entry in entries:
        kind, moment = entry["type"], float(entry["t"])
        number = 1 if kind in _GATEWAY else _STEP_OF.get(kind, 0)
        if kind == "Submit" and entry.get("received") is not None:
            lines.append((entry["received"], 1, "frame received"))
        if kind == "StepResult":
            lines.append((entry["launched"], 6, f"step {entry['step']} starts"))
            lines.append((entry["finished"], 6, f"step {entry['step']} ends"))
        lines.append((moment, number, f"{kind}: {_what(entry, rid)}"))
    lines.sort(key=lambda line: line[0])  # stable: messages of one moment stay in the order in which they were routed
    start = lines[0][0]
    return [Line(moment - start, number, STEPS.get(number, "-"), what) for moment, number, what in lines]


def _what(entry: Entry, rid: str) -> str:
    mine: Any = entry["rows"].get(rid) if isinstance(entry.get("rows"), dict) else None
    match entry["type"]:
        case "Submit":
            return f"{entry['num_prompt_tokens']} prompt tokens, tenant {entry['tenant']}, priority {entry['priority']}"
        case "StepPlan":
            return f"step {entry['step']}: {_planned(entry, rid, mine)}"
        case "StepGrant":
            return f"step {entry['step']}: " + (f"holds {mine} blocks" if mine is not None else "denied")
        case "StepLaunch":
            return f"step {entry['step']}: " + ("draws a token" if mine else "draws nothing")
        case "StepResult":
            failed = dict(entry.get("failed", ())).get(rid)
            return f"step {entry['step']}: " + (f"failed: {failed}" if failed else "token drawn")
        case "Emit":
            return _emitted(mine)
        case "Stop":
            return f"stop string {mine[1]!r} after {mine[0]} tokens"
        case "Cancel":
            return str(entry["reason"])
        case "Note":
            return f"{entry['point']} " + ", ".join(f"{key}={value}" for key, value in entry["facts"].items())
    skipped = ("v", "t", "type", "rid", "rids", "rows")
    return ", ".join(f"{key}={value}" for key, value in entry.items() if key not in skipped)


def _planned(entry: Entry, rid: str, mine: Any) -> str:
    if rid in entry["preempted"]:
        return "preempted"
    if rid in entry["released"]:
        return "released"
    if mine is not None:
        cached = entry["started"].get(rid)
        hit = f", admitted with {cached} cached tokens" if cached is not None else ""
        return f"{mine[1]} tokens from position {mine[0]}{hit}"
    return f"left out: {entry['reasons'].get(rid, 'no reason given')}"


def _emitted(mine: Any) -> str:
    num_tokens, finish = mine
    if finish is not None:
        failure = finish.get("failure")
        why = f" ({failure['code']}: {failure['message']})" if failure else ""
        return f"{num_tokens} tokens, ended: {finish['reason']}{why}"
    return f"{num_tokens} tokens" if num_tokens else "accepted"


def observe(entries: Sequence[Entry], rid: str) -> dict[str, dict[str, Any]]:
    """What each of the six points observed; times in seconds, None for what did not happen (yet)."""
    by_type: dict[str, list[Entry]] = {}
    for entry in entries:
        by_type.setdefault(entry["type"], []).append(entry)
    submit: Entry = next(iter(by_type.get("Submit", ())), {})
    notes = {note["point"]: dict(note["facts"]) for note in by_type.get("Note", ())}
    plans, results = by_type.get("StepPlan", []), by_type.get("StepResult", [])
    emits = [entry["rows"][rid] for entry in by_type.get("Emit", ()) if rid in entry["rows"]]
    finish: Entry = next((finish for _, finish in emits if finish is not None), {})
    timing, usage = finish.get("timing", {}), finish.get("usage", {})
    arrival = timing.get("arrival", submit.get("t"))
    ran = [plan for plan in plans if rid in plan["rows"]]
    blocks = [entry["rows"][rid] for entry in by_type.get("StepGrant", ()) if rid in entry["rows"]]
    cancel: Entry = next(iter(by_type.get("Cancel", ())), {})
    observed: dict[str, dict[str, Any]] = {
        "gateway": {
            "queued_s": _between(submit.get("received"), submit.get("t")),
            "tenant": submit.get("tenant"),
            "cancelled": cancel.get("reason"),
        },
        "text_in": {_TOKENS_IN: submit.get(_TOKENS_IN)},
        "scheduler": {
            "waited_s": _between(arrival, ran[0]["t"] if ran else None),
            "num_steps": len(ran),
            "num_preemptions": sum(rid in plan["preempted"] for plan in plans),
            "left_out": sorted({plan["reasons"][rid] for plan in plans if rid in plan["reasons"]}),
        },
        "kv": {
            "max_blocks": max(blocks, default=0),
            "num_cached_tokens": usage.get(
                "cached", next((plan["started"][rid] for plan in ran if rid in plan["started"]), 0)
            ),
            "num_denied": sum(rid in entry["denied"] for entry in by_type.get("StepGrant", ())),
        },
        "model": {
            "num_steps": len(results),
            "busy_s": sum(result["finished"] - result["launched"] for result in results),
            "failed": [why for result in results for name, why in result["failed"] if name == rid],
        },
        "text_out": {
            _TOKENS_OUT: usage.get("output", sum(count for count, _ in emits)),
            _FIRST_TOKEN: _between(arrival, timing.get("first_token")),
            "finish": finish.get("reason"),
        },
    }
    for point, facts in notes.items():  # what an edge noted itself joins the point of that name, or stands beside
        observed.setdefault(point, {}).update(facts)
    return observed


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
