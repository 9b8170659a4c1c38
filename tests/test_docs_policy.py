"""The guide for authors says what the contract is: hooks, arguments, views, laws, claims; its examples run.

Where a table is out of date, the message of the failing test is the right table.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.config import SchedulerConfig
from mainspring.core.policy import Decision, Event, PolicyContext, SchedulerPolicy, SchedulerView
from mainspring.core.registry import Registry
from mainspring.core.request import RequestView
from mainspring.schedulers.host.build import make_policy
from mainspring.testing import ALWAYS, CLAIMS, Trial

GUIDE = Path(__file__).parents[1] / "docs" / "write_a_policy.md"
TEXT = GUIDE.read_text(encoding="utf-8")


def signatures() -> dict[str, str]:
    """Hook -> heading of every method that a policy may override."""
    found = {}
    for name, value in vars(SchedulerPolicy).items():
        if inspect.isfunction(value) and (name[0] != "_" or name == "__init__"):
            found[name] = f"### `{name}({', '.join(list(inspect.signature(value).parameters)[1:])})`"
    return found


@pytest.mark.parametrize("hook", signatures())
def test_every_hook_has_a_heading_with_its_arguments(hook: str) -> None:
    assert signatures()[hook] in TEXT.splitlines()


def test_no_heading_speaks_of_a_hook_that_does_not_exist() -> None:
    headings = {line for line in TEXT.splitlines() if line.startswith("### `")}
    assert headings == set(signatures().values())


@pytest.mark.parametrize("kind", [RequestView, SchedulerView, PolicyContext, Decision, Event])
def test_everything_that_a_policy_sees_or_says_is_named(kind: type) -> None:
    names = getattr(kind, "_fields", None) or [name for name in dir(kind) if name[0] != "_"]
    missing = [name for name in names if not re.search(rf"`(\w+\.)?{name}[`(]", TEXT)]
    assert not missing


def test_the_class_attributes_are_named() -> None:
    missing = [name for name in SchedulerPolicy.__annotations__ if f"`{name}`" not in TEXT]
    assert not missing


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def shown(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", TEXT, re.DOTALL)
    assert found, f"{GUIDE.name} lacks the markers of {name}"
    return found[1].strip()


def expect(name: str, wanted: str) -> None:
    assert shown(name) == wanted, f"{GUIDE.name}, between the markers of {name}, should be:\n{wanted}"


def test_the_table_of_laws_is_right() -> None:
    rows = [(f"`{name}`", (law.__doc__ or "").splitlines()[0]) for name, law in ALWAYS.items()]
    rows.append(("`deterministic`", "The same inputs give the same decisions, whatever the hash seed."))
    rows.append(("`state_machine`", "Random traffic finds no breach that the standard traffic missed."))
    expect("laws", table(("law", "what it says"), rows))


def test_the_table_of_claims_is_right() -> None:
    rows = [(f"`{name}`", claim.promise.format(bound="(bound)")) for name, claim in CLAIMS.items()]
    expect("claims", table(("claim", "what it promises"), rows))


def test_the_table_of_policies_and_claims_is_right() -> None:
    """From the registry: a new policy must appear here, and a changed claim must be written down."""
    registry = Registry()
    rows = []
    for info in registry.available("scheduler"):
        if info.origin != "mainspring":
            continue
        claims = made(registry, info.name).claims
        rows.append((f"`{info.name}`", *(mark(claims.get(claim)) for claim in CLAIMS)))
        assert claims.keys() <= CLAIMS.keys()
    expect("policies", table(("policy", *(f"`{claim}`" for claim in CLAIMS)), rows))


def made(registry: Registry, name: str) -> Any:
    return make_policy(registry.make, SchedulerConfig(use=name), PolicyContext(512, 256, 1000, 16))


def mark(bound: Any) -> str:
    return "" if bound is None or bound is False else "yes" if bound is True else str(bound)


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.slow
def test_the_policy_of_the_guide_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy_of_the_guide.py").write_text(blocks()[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with Trial("policy_of_the_guide:Brief", profile="fast") as trial:
        assert trial.broken() == {}


def test_the_example_of_a_test_runs() -> None:
    exec(compile(blocks()[1], str(GUIDE), "exec"), {})
