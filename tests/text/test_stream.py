"""One request's output as a whole: any ids, steps, stops and ends give the text of the kept ids up to the stop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.messages import Finish, FinishReason, Timing, Usage
from mainspring.plugins.text.detokenize import Detokenizer, Pieces
from mainspring.plugins.text.stream import TextStream

from .vocabularies import byte_level

PIECES = Pieces(byte_level())
BYTES = st.sampled_from([*b"ab#", *"é漢".encode(), 0xFF, 260])
STOPS = st.lists(st.sampled_from(["#", "ab", "a#b", "é", "漢a", "\ufffd"]), max_size=2, unique=True).map(tuple)


def plain_stream(ids: list[int], stops: tuple[str, ...], min_tokens: int) -> tuple[str, int, str | None]:
    """(shown text, kept tokens, stop) by decoding every prefix anew."""
    text = ""
    for count in range(1, len(ids) + 2):
        decoder = Detokenizer(PIECES)
        grown = decoder.push(ids[:count]) + (decoder.flush() if count > len(ids) else "")
        for end in range(len(text) + 1, len(grown) + 1):
            found = [stop for stop in stops if grown[:end].endswith(stop)]
            if found and min(count, len(ids)) > min_tokens:
                stop = max(found, key=len)
                return grown[: end - len(stop)], min(count, len(ids)), stop
        text = grown
    return text, len(ids), None


@given(st.lists(st.lists(BYTES, max_size=4), max_size=6), STOPS, st.integers(0, 5))
def test_steps_of_any_size_equal_the_plain_rule(
    steps: list[list[int]], stops: tuple[str, ...], min_tokens: int
) -> None:
    """C-08, C-09, D-01, websocket D4 and D5, with the last step delivered together with the end."""
    ids = [token_id for step in steps for token_id in step]
    stream = TextStream(PIECES, stops, min_tokens, skip_special_tokens=True)
    finish = Finish(FinishReason.LENGTH, Usage(1, 0, len(ids)), Timing(0.0))
    text = ""
    kept: list[int] = []
    for step in steps[:-1]:
        shown, counted = stream.push(step)
        text, kept = text + shown, kept + list(counted)
        if stream.matched is not None:
            break
    shown, counted, end = stream.end(steps[-1] if steps else [], finish)
    text, kept = text + shown, kept + list(counted)
    expected_text, expected_kept, expected_stop = plain_stream(ids, stops, min_tokens)
    assert text == expected_text and kept == ids[:expected_kept]
    assert end.stop == expected_stop and end.usage.output == expected_kept
    assert end.reason is (FinishReason.LENGTH if expected_stop is None else FinishReason.STOP)


def test_a_character_cut_by_the_end_comes_after_what_was_held_back() -> None:
    """D-01 with C-08: the mark of the cut goes through the matcher, in order, and may itself complete a stop."""
    finish = Finish(FinishReason.LENGTH, Usage(1, 0, 2), Timing(0.0))
    assert TextStream(PIECES, ("a#b",), 0, True).end([ord("a"), 0xE6], finish) == ("a\ufffd", (ord("a"), 0xE6), finish)
    text, _, end = TextStream(PIECES, ("a\ufffd",), 0, True).end([ord("a"), 0xE6], finish)
    assert (text, end.stop) == ("", "a\ufffd")
