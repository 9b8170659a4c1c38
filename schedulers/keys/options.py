"""Ranges for options, and the options that policies with victims and admissions share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from ...core.policy import Event, PolicyContext, SchedulerPolicy, SchedulerView
from ...core.request import RequestView
from .admission import Admission, AverageOutput, OutputEstimate, estimate
from .victims import Victims, for_running

PosInt = Annotated[int, Meta(ge=1)]
NonNegInt = Annotated[int, Meta(ge=0)]
PosFloat = Annotated[float, Meta(gt=0)]
NonNegFloat = Annotated[float, Meta(ge=0)]


@dataclass(frozen=True)
class Keys:
    """Shared options."""

    victims: Victims = "latest"  # whom to preempt when blocks run out
    admission: Admission = "prompt"  # how much room an admission needs
    longest_output: PosInt = 4096  # tokens; the admission estimates believe in no larger max_tokens
    output_estimate: OutputEstimate = "max_tokens"  # how long an output will be, to the admission estimates
    admit_every: PosInt = 1  # admit in every n-th step only


class KeyedPolicy(SchedulerPolicy):
    """Puts the chosen keys in as hooks of the instance, so that the defaults cost nothing."""

    options: Any

    def __init__(self, options: Any, context: PolicyContext) -> None:
        super().__init__(options or Keys(), context)
        chosen, hooks = self.options, dict[str, Any]()
        if chosen.output_estimate == "average" and chosen.admission != "prompt":
            average = AverageOutput(chosen.longest_output)
            hooks["reserve"] = estimate(chosen.admission, average.longest)
            hooks["on_event"] = _learning(average, self.on_event)
        else:
            hooks["reserve"] = estimate(chosen.admission, lambda _request: chosen.longest_output)
        if chosen.victims != "latest" and type(self).select_victims is SchedulerPolicy.select_victims:
            hooks["select_victims"] = for_running(chosen.victims, context.rng)
        if chosen.admit_every > 1:
            hooks["order_waiting"] = self._in_turn(self.order_waiting)
        for name, hook in hooks.items():
            if hook is not None:
                setattr(self, name, hook)

    def _in_turn(self, inner: Any) -> Any:
        """Nobody is admitted between turns, unless nobody who runs can go on."""

        def order_waiting(view: SchedulerView) -> Iterable[RequestView] | None:
            between = (view.step + 1) % self.options.admit_every
            if between and any(request.num_remaining_tokens for request in view.running):
                return ()
            return inner(view)  # type: ignore[no-any-return]

        return order_waiting


def _learning(average: AverageOutput, inner: Any) -> Any:
    def on_event(event: Event) -> Iterable[str] | None:
        average.learn(event)
        return inner(event)  # type: ignore[no-any-return]

    return on_event
