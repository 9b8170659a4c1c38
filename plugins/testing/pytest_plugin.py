"""``pytest --policy mypkg:MyPolicy``: tries a scheduling policy on every law and on everything it claims.

Loaded by pytest in every run of this environment, so it imports nothing until it is asked to try a policy.  Without
paths on the command line only the laws run; with paths the tests found there run as well.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .suite import Check, Trial

_TRIAL = pytest.StashKey["Trial"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mainspring", "conformance of scheduling policies")
    group.addoption("--policy", metavar="NAME", help="a registered scheduler, or package.module:Class")
    group.addoption(
        "--policy-options",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="options of the policy, values as in TOML",
    )
    group.addoption("--policy-wrap", metavar="NAME", action="append", default=[], help="a wrapper, outermost first")
    group.addoption(
        "--policy-profile", choices=("fast", "full"), default="full", help="how long to search (default: full)"
    )
    group.addoption("--policy-golden", metavar="FILE", type=Path, help="decisions to compare with; written if missing")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.policy and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = []


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.policy:
        return
    trial = make_trial(config.option)
    config.stash[_TRIAL] = trial
    config.add_cleanup(trial.close)
    suite = PolicySuite.from_parent(session, name=trial.subject.name)
    items += [PolicyCheck.from_parent(suite, name=check.name, check=check) for check in trial.checks()]


def make_trial(option: Any) -> Trial:
    """The trial that the command line asks for.  Raises UsageError if it cannot be held."""
    from ...core.errors import MainspringError
    from .suite import Trial

    trial = Trial(
        option.policy,
        parse_options(option.policy_options),
        wrap=tuple(option.policy_wrap),
        profile=option.policy_profile,
        golden=option.policy_golden,
    )
    try:
        trial.checks()
    except MainspringError as error:
        raise pytest.UsageError(f"--policy {option.policy}: {error}") from error
    return trial


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What one decision costs here; a figure to look at, nothing is judged by it."""
    if (trial := config.stash.get(_TRIAL, None)) is None or config.option.collectonly:
        return
    from .cost import decision_cost

    terminalreporter.section(f"policy {trial.subject.name}")
    claims = ", ".join(f"{name} {bound}" if bound is not True else name for name, bound in trial.claims.items())
    terminalreporter.line(f"claims: {claims or 'none'}")
    if not trial.hangs:
        terminalreporter.line(str(decision_cost(trial.subject)))


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """``["tickets=3", "name=x"]`` -> values as in TOML; a bare word is a string.  Raises UsageError."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise pytest.UsageError(f"--policy-options {pair!r}: expected key=value, for example tickets=3")
        try:
            options[key.strip()] = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            options[key.strip()] = text.strip()
    return options


class PolicySuite(pytest.Collector):
    """The node above the checks; its name is the policy's."""

    def collect(self) -> Iterator[pytest.Item]:
        """The checks are made when the options are known, not found in a file."""
        return iter(())


class PolicyCheck(pytest.Item):
    """One law or claim.  A breach is shown as its story, without a traceback."""

    def __init__(self, *, check: Check, **fields: Any) -> None:
        super().__init__(**fields)
        self._run: Callable[[], None] = check.run

    def runtest(self) -> None:
        self._run()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if excinfo.errisinstance(AssertionError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.parent.name if self.parent else ''}: {self.name}"
