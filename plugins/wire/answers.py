"""What the answers of the APIs have in common: an event to begin with, text, an end, or a refusal instead of all."""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import ClientError
from ...core.messages import Finish, FinishReason, Usage
from ..schema import GenerateRequest
from ..text.events import Accepted, Delta, TextEvent
from .errors import failure_of
from .outbox import Outbox, Source

UNSTARTED = (FinishReason.ERROR, FinishReason.DEADLINE)  # of one that was never accepted: there is no answer to end


class Answer(Source):
    """One answer.  A subclass writes ``begin`` and ``end`` in its API's words, and ``refuse`` if that is a frame.

    ``streams``: text goes out as it comes; ``keeps``: the end repeats it (``text``).
    """

    __slots__ = ("_texts", "begun", "keeps", "num_input", "streams")

    def __init__(
        self,
        outbox: Outbox,
        name: str,
        request: GenerateRequest,
        clock: Callable[[], float],
        *,
        streams: bool = True,
        keeps: bool = True,
    ) -> None:
        super().__init__(outbox, name, request, clock)
        self.streams, self.keeps = streams, keeps
        self.begun = False
        self.num_input = 0  # prompt tokens, once it has begun
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def event(self, event: TextEvent) -> None:
        """Take one event of the text edge."""
        if isinstance(event, Accepted):
            self._begin(event.num_prompt_tokens)
            return
        if isinstance(event, Delta):
            self._show(event.text, event.token_ids)
            return
        self.end_pause()
        self.finish = event.finish
        if not self.begun and event.finish.reason in UNSTARTED:
            self.refuse(failure_of(event.finish, event.rid))
            return
        if not self.begun:
            self._begin(event.finish.usage.input)
        self._show(event.text, event.token_ids)
        failure = failure_of(event.finish, event.rid) if event.finish.reason is FinishReason.ERROR else None
        self.end(event.finish, failure)

    def refuse(self, error: ClientError) -> None:
        """End it without an answer."""
        self.failure = error

    def begin(self) -> None:
        """Queue what comes before the text."""
        raise NotImplementedError

    def end(self, finish: Finish, failure: ClientError | None) -> None:
        """Queue what comes after it; ``failure``: it has no end but this."""
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        """Queue a finished frame that has no sequence number."""
        self.put(lambda _seq: frame)

    def _begin(self, num_input: int) -> None:
        self.num_input = num_input
        self.begin()
        self.begun = True

    def _show(self, text: str, token_ids: tuple[int, ...]) -> None:
        if text and self.keeps:
            self._texts.append(text)
        if text and self.streams:
            self.add(text, token_ids)


def io_counts(usage: Usage) -> dict[str, int]:
    """Tokens in the words of most APIs: input, output, total."""
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
    }
