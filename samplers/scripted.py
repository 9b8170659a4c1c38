"""A sampler that plans nothing: the executor's own script says which ids come out.  For simulation and tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..core.hookspecs import Register, hookimpl
from ..core.messages import Message, SamplingParams, StepGrant, StepLaunch
from ..core.policy import SampleOutput, SamplerContext


class ScriptedSampler:
    """Passes grants on.  Every parameter is accepted, none has an effect."""

    api_level = 1
    parameters: frozenset[str] = frozenset()

    def __init__(self, options: Any, context: SamplerContext) -> None:
        del options, context

    def validate(self, params: SamplingParams) -> None:
        """Anything goes."""

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        assert isinstance(message, StepGrant)
        if not message.rows and not message.released:
            return ()
        return (StepLaunch(message.step, message.rows, None, message.released, message.copies, message.padding),)

    def run(self, logits: Any, plan: Any) -> SampleOutput:
        """Ids by the largest logit of each row."""
        return SampleOutput([int(row.argmax()) for row in logits], [])

    def check(self) -> None:
        """Nothing is kept."""


@hookimpl
def register_samplers(register: Register) -> None:
    register("scripted", ScriptedSampler)
