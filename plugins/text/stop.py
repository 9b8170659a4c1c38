"""Stop strings: finds the first one in a stream of text and never shows text that may turn out to be part of one.

The rule does not depend on how the text is cut into pieces: the match that *ends* first wins; of several that end at
the same character, the longest (so nothing of any of them is shown).  All stops are searched at once with an
Aho-Corasick automaton, one transition per character.
"""

from __future__ import annotations

from functools import lru_cache


class _Automaton:
    """Shared by all requests with the same stops.  State 0 is the root, ``depth`` the text a state stands for."""

    __slots__ = ("depth", "fail", "found", "next")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.found = [""]  # the longest stop that ends in this state
        for stop in stops:
            state = 0
            for char in stop:
                if char not in self.next[state]:
                    self.next.append({})
                    self.depth.append(self.depth[state] + 1)
                    self.found.append("")
                    self.next[state][char] = len(self.next) - 1
                state = self.next[state][char]
            self.found[state] = stop
        self.fail = [0] * len(self.next)
        queue = list(self.next[0].values())
        for state in queue:  # breadth first: the failure state is shorter, so it is ready
            self.found[state] = self.found[state] or self.found[self.fail[state]]
            for char, child in self.next[state].items():
                self.fail[child] = self.step(self.fail[state], char)
                queue.append(child)

    def step(self, state: int, char: str) -> int:
        while state and char not in self.next[state]:
            state = self.fail[state]
        return self.next[state].get(char, 0)


_automaton = lru_cache(maxsize=64)(_Automaton)


class StopMatcher:
    """Feeds on text in order and answers with the part that is safe to show.

    A match counts only if its last character comes with a token after number ``min_tokens``; one that ends earlier is
    ordinary text.  After a match ``matched`` is the stop, ``kept_tokens`` the number of output tokens up to and
    including the one that completed it, and nothing is shown any more.
    """

    __slots__ = ("_automaton", "_held", "_state", "kept_tokens", "matched", "min_tokens")

    def __init__(self, stops: tuple[str, ...], min_tokens: int = 0) -> None:
        self._automaton, self._state, self._held = _automaton(stops), 0, ""
        self.min_tokens = min_tokens
        self.matched: str | None = None
        self.kept_tokens = 0

    def push(self, text: str, num_tokens: int) -> str:
        """Take ``text``, complete with output token number ``num_tokens`` (from 1); returns what may be shown now."""
        if self.matched is not None:
            return ""
        automaton, state, armed = self._automaton, self._state, num_tokens > self.min_tokens
        window = self._held + text
        offset = len(self._held)
        for index, char in enumerate(text, offset + 1):
            state = automaton.step(state, char)
            if armed and automaton.found[state]:
                self.matched, self.kept_tokens, self._held = automaton.found[state], num_tokens, ""
                return window[: index - len(self.matched)]
        while automaton.depth[state] and not automaton.next[state]:
            state = automaton.fail[state]  # a whole stop that min_tokens passed over: no longer a candidate
        self._state = state
        shown = len(window) - automaton.depth[state]
        self._held = window[shown:]
        return window[:shown]

    def flush(self) -> str:
        """The end of the text: what was held back and is now known to be no stop."""
        held, self._held, self._state = self._held, "", 0
        return held
