"""Stop strings: equal to a plain search whatever the chunks, and nothing of a stop ever leaks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mainspring.plugins.text.stop import StopMatcher

ALPHABET = "ab c"
TEXTS = st.text(ALPHABET, max_size=40)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def feed(stops: tuple[str, ...], pieces: list[str], min_tokens: int = 0) -> tuple[StopMatcher, list[str]]:
    matcher = StopMatcher(stops, min_tokens)
    shown = [matcher.push(piece, number) for number, piece in enumerate(pieces, 1)]
    return matcher, [*shown, matcher.flush()]


def first_match(text: str, stops: tuple[str, ...], from_end: int = 0) -> tuple[int, str] | None:
    """(where the match ends, the stop) by brute force: earliest end, then the longest."""
    for end in range(from_end + 1, len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            return end, max(here, key=len)
    return None


def test_pieces_across_token_boundaries_c08() -> None:
    matcher, shown = feed(("green blue",), ["red ", "gre", "en b", "lue!"])
    assert shown == ["red ", "", "", "", ""]
    assert matcher.matched == "green blue" and matcher.kept_tokens == 4


def test_word_across_chunks_websocket_d4() -> None:
    matcher, shown = feed(("own fox",), ["The quick ", "brown", " fox jumps"])
    assert "".join(shown) == "The quick br" and matcher.matched == "own fox"


def test_nothing_after_the_stop_is_sent_websocket_d5() -> None:
    matcher, shown = feed(("##",), ["a#", "#b", "c", "d"])
    assert shown == ["a", "", "", "", ""] and matcher.kept_tokens == 2


def test_held_text_is_flushed_when_it_was_no_stop() -> None:
    matcher, shown = feed(("END",), ["the E", "N", "d EN"])
    assert shown == ["the ", "", "ENd ", "EN"] and matcher.matched is None


def test_the_match_that_ends_first_wins_and_then_the_longest() -> None:
    assert feed(("bcde", "cd"), ["abcde"])[0].matched == "cd"
    matcher, shown = feed(("cd", "abcd"), ["xabcd"])
    assert matcher.matched == "abcd" and "".join(shown) == "x"


def test_min_tokens_holds_back_stop_strings_c09() -> None:
    """A match must be completed by a token after number min_tokens; earlier ones are text."""
    matcher, shown = feed(("X",), ["a", "b", "X", *"cdefghijk", "X", "z"], min_tokens=10)
    assert "".join(shown) == "abXcdefghijk" and matcher.kept_tokens == 13
    matcher, shown = feed(("XY",), ["a", "X", "Y", "b"], min_tokens=2)
    assert "".join(shown) == "a" and matcher.kept_tokens == 3
    matcher, shown = feed(("XY",), ["a", "X", "Y", "b"], min_tokens=3)
    assert shown == ["a", "", "XY", "b", ""] and matcher.matched is None


@given(TEXTS, STOPS, st.data())
def test_any_chunking_equals_the_text_up_to_the_first_stop(
    text: str, stops: tuple[str, ...], data: st.DataObject
) -> None:
    """C-08, websocket D4."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    matcher, shown = feed(stops, pieces)
    expected = first_match(text, stops)
    if expected is None:
        assert "".join(shown) == text and matcher.matched is None
    else:
        end, stop = expected
        assert "".join(shown) == text[: end - len(stop)] and matcher.matched == stop
        assert matcher.kept_tokens == next(number for number, bound in enumerate(bounds[1:], 1) if bound >= end)


@given(TEXTS, STOPS, st.integers(0, 12))
def test_min_tokens_with_one_character_per_token(text: str, stops: tuple[str, ...], min_tokens: int) -> None:
    """C-09: with a token per character, the first match that ends after ``min_tokens`` characters."""
    matcher, shown = feed(stops, list(text), min_tokens)
    expected = first_match(text, stops, from_end=min_tokens)
    if expected is None:
        assert "".join(shown) == text
    else:
        end, stop = expected
        assert matcher.matched == stop and matcher.kept_tokens == end
        # What min_tokens let pass may have been shown already; never more than up to the match.
        assert "".join(shown) == text[: end - len(stop)]


@given(TEXTS, STOPS)
def test_hold_back_is_as_short_as_possible(text: str, stops: tuple[str, ...]) -> None:
    """What is held is always the start of some stop, so ordinary text flows at once."""
    matcher, shown = StopMatcher(stops), ""
    for number, char in enumerate(text, 1):
        shown += matcher.push(char, number)
        if matcher.matched is not None:
            return
        held = text[len(shown) : number]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
