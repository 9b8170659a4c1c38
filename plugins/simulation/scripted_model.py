"""An executor without a model and without arithmetic: every request has its answer prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.messages import StepLaunch, StepResult
from ...core.policy import ExecutorInfo, SampleOutput


class ScriptedModel:
    """Implements ``core.policy.Executor``.  ``expect`` says beforehand what a request will answer."""

    def __init__(self, num_blocks: int, vocab_size: int, max_context: int) -> None:
        self.info = ExecutorInfo("scripted", vocab_size, max_context, (), num_blocks)
        self._answers: dict[str, tuple[int, Sequence[int]]] = {}

    def expect(self, rid: str, prompt_tokens: int, answer: Sequence[int]) -> None:
        """``answer`` are the ids behind the prompt; past its end the last one is repeated."""
        self._answers[rid] = prompt_tokens, answer

    def forget(self, rid: str) -> None:
        """``rid`` has ended.  A step in flight may still name it."""
        prompt_tokens, answer = self._answers[rid]
        self._answers[rid] = prompt_tokens, answer[-1:]

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        progress("scripted model")
        return self.info

    def execute(self, launch: StepLaunch, sample: Callable[[Any, Any], SampleOutput]) -> StepResult:
        answers = self._answers
        rids: list[str] = []
        ids: list[int] = []
        for row in launch.rows:
            if row.samples:
                rid = row.rid
                prompt_tokens, answer = answers[rid]
                at = row.start + row.count - prompt_tokens
                rids.append(rid)
                ids.append(answer[at] if at < len(answer) else answer[-1])
        return StepResult(launch.step, tuple(rids), tuple(ids))

    def close(self) -> None:
        """Nothing to free."""
