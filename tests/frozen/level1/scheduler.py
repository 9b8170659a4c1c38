"""A scheduler written for plugin API level 1.  Frozen: if it stops working, level 1 has been broken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.core.policy import Decision, Event, PolicyContext, SchedulerPolicy, SchedulerView
from mainspring.core.request import RequestView


@dataclass(frozen=True)
class Options:
    stride: int = 3  # every so many steps the plan is made by schedule() alone


class Frozen(SchedulerPolicy):
    """Uses every hook and every attribute that level 1 has."""

    api_level = 1
    rekey = "event"
    claims = {}
    Options = Options

    def __init__(self, options: Any, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)
        self.facts = (context.token_budget, context.max_running, context.num_blocks, context.block_size)
        self.tokens: dict[str, int] = {}

    def admit(self, request: RequestView, view: SchedulerView) -> str | None:
        return "too many" if view.num_waiting + view.num_running + view.num_in_flight > 1000 else None

    def bucket(self, request: RequestView) -> str:
        return request.tenant

    def bucket_key(self, bucket: Any, planned_tokens: int, now: float) -> tuple[int, str]:
        return self.tokens.get(bucket, 0) + planned_tokens, bucket

    def waiting_key(self, request: RequestView, now: float) -> tuple[Any, ...]:
        urgency = request.deadline if request.deadline is not None else float("inf")
        return (request.priority, urgency, request.num_preemptions == 0, request.arrival, request.seq)

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView] | None:
        if view.step % 2:
            return None
        return sorted(view.waiting, key=lambda one: (one.num_tokens - view.cached_prefix_tokens(one), one.seq))

    def split_budget(self, view: SchedulerView) -> Mapping[str, int] | None:
        caps = {request.rid: max(1, request.num_remaining_tokens) for request in view.running}
        return {**caps, "*": view.token_budget}

    def select_victims(self, view: SchedulerView, need_blocks: int, for_request: RequestView) -> Sequence[str] | None:
        if for_request.rid not in {request.rid for request in view.running}:
            return ()
        return [request.rid for request in sorted(view.running, key=lambda one: (-view.held_blocks(one), one.seq))]

    def reserve(self, request: RequestView, view: SchedulerView) -> int:
        return request.num_tokens + min(4, request.max_tokens - request.num_output_tokens)

    def on_event(self, event: Event) -> Iterable[str] | None:
        if event.kind == "tokens":
            tenant = event.request.tenant
            self.tokens[tenant] = self.tokens.get(tenant, 0) + event.num_tokens
        return (event.request.rid,) if event.kind == "preempted" else None

    def schedule(self, view: SchedulerView) -> Decision | None:
        if view.step % self.options.stride or not view.admitting:
            return None
        draft, rows, left = view.draft(), list[tuple[str, int]](), view.token_budget
        for request in view.running:
            count = min(request.num_remaining_tokens, left)
            if count > 0 and not draft.extend(request.rid, request.num_computed_tokens + count):
                rows.append((request.rid, count))
                left -= count
        return Decision(rows, reasons={"": f"{draft.free_blocks} free"}) if rows else None

    def export_state(self) -> dict[str, Any]:
        return {"tokens": dict(self.tokens)}

    def import_state(self, policy: str, state: Mapping[str, Any]) -> None:
        self.tokens = dict(state.get("tokens", {}))
