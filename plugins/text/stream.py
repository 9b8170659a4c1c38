"""One request's output: ids in, text that may be shown out, until a stop string or the engine ends it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.messages import Finish, FinishReason, Usage
from .detokenize import Detokenizer, Pieces
from .stop import StopMatcher


class TextStream:
    """``num_tokens`` counts the output ids that belong to the answer; after a match it stays at the kept ones."""

    __slots__ = ("_detokenizer", "_matcher", "num_tokens")

    def __init__(self, pieces: Pieces, stops: tuple[str, ...], min_tokens: int, skip_special_tokens: bool) -> None:
        self._detokenizer = Detokenizer(pieces, skip_special_tokens)
        self._matcher = StopMatcher(stops, min_tokens) if stops else None
        self.num_tokens = 0

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return None if self._matcher is None else self._matcher.matched

    def push(self, token_ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """New text to show, and the ids that count (up to the one that completes a stop string)."""
        if self._matcher is None:
            self.num_tokens += len(token_ids)
            return self._detokenizer.push(token_ids), tuple(token_ids)
        shown: list[str] = []
        for count, token_id in enumerate(token_ids):
            if self._matcher.matched is not None:
                return "".join(shown), tuple(token_ids[:count])
            self.num_tokens += 1
            shown.append(self._matcher.push(self._detokenizer.push((token_id,)), self.num_tokens))
        return "".join(shown), tuple(token_ids)

    def end(self, token_ids: Sequence[int], finish: Finish) -> tuple[str, tuple[int, ...], Finish]:
        """Last text, last ids and the finish to report.

        The id that ended the request counts but its text is not shown.  If a stop string was complete first, the end
        is that stop and the output is cut there, whatever ended the request in the meantime.
        """
        silent = 1 if token_ids and finish.reason is FinishReason.STOP and not isinstance(finish.stop, str) else 0
        shown, kept = ("", ()) if self.matched is not None else self.push(token_ids[: len(token_ids) - silent])
        if self.matched is None:
            shown += self._flush()
        if (stop := self.matched) is not None:
            usage = Usage(finish.usage.input, finish.usage.cached, self.num_tokens)
            return (
                shown,
                kept,
                msgspec.structs.replace(finish, reason=FinishReason.STOP, stop=stop, usage=usage, failure=None),
            )
        return shown, tuple(token_ids), finish

    def _flush(self) -> str:
        rest = self._detokenizer.flush()
        if self._matcher is None:
            return rest
        return self._matcher.push(rest, self.num_tokens) + self._matcher.flush()
