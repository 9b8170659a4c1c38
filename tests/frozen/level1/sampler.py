"""A sampler written for plugin API level 1.  Frozen: if it stops working, level 1 has been broken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mainspring.core.errors import ClientError
from mainspring.core.messages import Message, SamplingParams, StepGrant, StepLaunch
from mainspring.core.policy import SampleOutput, SamplerContext


class Frozen:
    """Always the largest logit but one."""

    api_level = 1
    parameters = frozenset({"temperature"})

    def __init__(self, options: Any, context: SamplerContext) -> None:
        self.vocab_size, self.end_token_ids = context.vocab_size, context.end_token_ids

    def validate(self, params: SamplingParams) -> None:
        if params.temperature < 0:
            raise ClientError(
                "invalid_request", f"temperature = {params.temperature}, valid: 0 and more", "temperature"
            )

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        assert isinstance(message, StepGrant)
        if not message.rows and not message.released:
            return ()
        plan = [row.rid for row in message.rows if row.samples]
        return (StepLaunch(message.step, message.rows, plan, message.released, message.copies, message.padding),)

    def run(self, logits: Any, plan: Any) -> SampleOutput:
        return SampleOutput([int(row.argsort()[-2]) for row in logits], [])

    def check(self) -> None:
        assert self.vocab_size > 1
