"""The built-in policies decide, byte for byte, what they decided when their traces were checked in."""

from __future__ import annotations

import pytest
from tests.golden.decisions import CASES, FILES, decided, path_of

from mainspring.core.registry import Registry


@pytest.mark.parametrize("name", CASES)
def test_the_decisions_are_those_on_file(name: str) -> None:
    """After a change that is meant: ``python -m tests.golden.decisions`` writes the files anew."""
    assert decided(name) == path_of(name).read_text(encoding="utf-8")


def test_every_policy_has_a_trace_and_no_two_are_alike() -> None:
    """Traces that were equal would not notice one policy taking another's place."""
    assert {file.stem for file in FILES.iterdir()} == CASES.keys()
    assert len({path_of(name).read_bytes() for name in CASES}) == len(CASES)
    registry = Registry()
    shipped = {info.name for info in registry.available("scheduler") if info.origin == "mainspring"}
    assert {use for use, _, _ in CASES.values()} == shipped
    wrappers = {one if isinstance(one, str) else one["use"] for _, _, wrap in CASES.values() for one in wrap}
    assert {info.name for info in registry.available("wrapper") if info.origin == "mainspring"} == wrappers
