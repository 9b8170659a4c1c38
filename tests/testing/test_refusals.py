"""A start stops at once, naming the entry and the nearest valid one; what nobody selected cannot stop it.

Behaviours F-03 to F-06 and invariant K 135: distributions are written into a folder on the path, as pip would.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mainspring.core.__main__ import main
from mainspring.core.config import SchedulerConfig
from mainspring.core.errors import ConfigError, MainspringError, PluginError
from mainspring.core.policy import PolicyContext
from mainspring.core.registry import Registry
from mainspring.schedulers.host.build import make_policy

Install = Callable[..., None]

POLICY = """
from dataclasses import dataclass
from mainspring.core.hookspecs import hookimpl
from mainspring.core.policy import SchedulerPolicy

@dataclass(frozen=True)
class Options:
    quantum: int = 4

class {kind}(SchedulerPolicy):
    {body}

@hookimpl
def register_schedulers(register):
    register("{name}", {kind}, Options)
"""


def policy(name: str, body: str = "pass", kind: str = "Mine") -> str:
    return POLICY.format(name=name, body=body, kind=kind)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(name, source, version)``: a distribution with an entry point of the same name."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    before = set(sys.modules)

    def write(name: str, source: str | None, version: str = "1.2.3", target: str = "") -> None:
        module = f"plug_{name}"
        monkeypatch.delitem(sys.modules, module, raising=False)
        if source is not None:
            (site / f"{module}.py").write_text(source, encoding="utf-8")
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: plug-{name}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[mainspring]\n{name} = {target or module}\n", encoding="utf-8")

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("plug_"):
            del sys.modules[name]


def start(use: str, options: dict[str, object] | None = None, wrap: tuple[str, ...] = ()) -> object:
    """What a start does with the scheduler's table."""
    config = SchedulerConfig(use=use, options=options or {}, wrap=wrap)
    return make_policy(Registry().make, config, PolicyContext(8, 4, 64, 4))


def refused(use: str, options: dict[str, object] | None = None, wrap: tuple[str, ...] = ()) -> str:
    with pytest.raises(MainspringError) as caught:
        start(use, options, wrap)
    return str(caught.value)


def test_an_installed_policy_is_used_by_its_name(install: Install) -> None:
    install("mine", policy("mine"))
    assert type(start("mine", {"quantum": 2})).__name__ == "Mine"


def test_an_unknown_name_says_the_nearest_installed_ones_included(install: Install) -> None:
    """F-03, K 135: the entry point is absent."""
    install("mine", policy("mine"))
    said = refused("mien")
    assert said.startswith("scheduler.use = 'mien'")
    assert "did you mean 'mine'" in said
    assert "fcfs" in said


def test_an_unknown_wrapper_says_the_nearest() -> None:
    said = refused("fcfs", wrap=("aging",))
    assert said.startswith("scheduler.wrap = 'aging': there is no such wrapper; did you mean 'ageing'")
    with pytest.raises(ConfigError, match=r"gateways = 'wss': there is no such gateway; did you mean 'ws'"):
        Registry().resolve("gateway", "wss")


def test_options_of_a_wrapper_are_named_where_they_stand() -> None:
    with pytest.raises(ConfigError, match=r"unknown key scheduler\.wrap\.max_wait = 3"):
        Registry().make("wrapper", "ageing", {"max_wait": 3})


WRAPPER = """
from mainspring.core.hookspecs import hookimpl
from mainspring.core.policy import SchedulerPolicy

class Mine{base}:
    {body}

@hookimpl
def register_wrappers(register):
    register("mine", Mine)
"""
GATEWAY = """
from mainspring.core.hookspecs import hookimpl

class Mine:
    api_level = 1
    name, consumes = "mine", ()
    def __init__(self, options, config, text): ...
    def deliver(self, message): ...
    async def start(self, port): ...
    async def run(self, port): ...
    async def flush(self): ...
    {body}

@hookimpl
def register_gateways(register):
    register("mine", Mine)
"""
TAKES_INNER = "def __init__(self, options, context, inner): ..."


@pytest.mark.parametrize(
    ("base", "body", "said"),
    [
        ("", TAKES_INNER + "\n    api_level = 1", "must be a subclass of core.policy.SchedulerPolicy"),
        ("(SchedulerPolicy)", "pass", "its factory must take (options, context, inner)"),
        ("(SchedulerPolicy)", TAKES_INNER + "\n    api_level = 3", "has api_level 3, this kernel runs [1]"),
        ("(SchedulerPolicy)", TAKES_INNER + "\n    def admit(self): ...", "admit must take (self, request, view)"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_refused(install: Install, base: str, body: str, said: str) -> None:
    """F-05."""
    install("mine", WRAPPER.format(base=base, body=body), version="7.0")
    message = refused("fcfs", wrap=("mine",))
    assert "wrapper 'mine' from plug-mine 7.0: " + said in message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", None),
        ("api_level = None", "has api_level None, this kernel runs [1]"),
        ("flush = None", "lacks flush(self)"),
        ("def run(self, port): ...", "run must be async"),
        ("async def deliver(self, message): ...", "deliver must not be async"),
        ("def __init__(self, options): ...", "its factory must take (options, config, text)"),
    ],
)
def test_a_gateway_that_does_not_fit_is_refused(install: Install, body: str, said: str | None) -> None:
    """F-05."""
    install("mine", GATEWAY.format(body=body), version="7.0")
    if said is None:
        assert Registry().resolve("gateway", "mine").version == "7.0"
        return
    with pytest.raises(PluginError, match=re.escape("gateway 'mine' from plug-mine 7.0: " + said)):
        Registry().resolve("gateway", "mine")


def test_a_misspelt_option_and_a_wrong_type_are_named(install: Install) -> None:
    """K 135."""
    install("mine", policy("mine"))
    said = refused("mine", {"quantm": 3})
    assert "scheduler.options.quantm = 3" in said
    assert "did you mean 'quantum'" in said
    said = refused("mine", {"quantum": "three"})
    assert "scheduler.options.quantum = 'three'" in said
    assert "expected `int`" in said


def test_a_selected_plugin_whose_import_raises_stops_the_start(install: Install) -> None:
    """F-03: plugin, package and cause are named."""
    install("bad", "raise RuntimeError('no such device')")
    said = refused("bad")
    assert "'bad'" in said
    assert "plug-bad" in said
    assert "RuntimeError: no such device" in said


def test_a_selected_plugin_that_exits_or_is_not_there_stops_the_start(install: Install) -> None:
    """F-03."""
    install("quits", "raise SystemExit(3)")
    assert "SystemExit" in refused("quits")
    install("gone", None, target="plug_gone_entirely")
    assert "No module named 'plug_gone_entirely'" in refused("gone")
    install("hollow", "x = 1", target="plug_hollow:y")
    assert "plug-hollow" in refused("hollow")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("api_level = 2", "has api_level 2, this kernel runs [1]"),
        ("def schedule(self): ...", "schedule must take (self, view)"),
        ("def waiting_key(self, request, now, extra): ...", "waiting_key must take (self, request, now)"),
        ("rekey = 'steps'", "rekey = 'steps' is not known; did you mean 'step'? (valid: arrival, event, step)"),
        ("async def schedule(self, view): ...", "schedule must not be async"),
        ("async def order_waiting(self, view): yield", "order_waiting must not be async"),
        ("def __init__(self, options): ...", "its factory must take (options, context)"),
        ("def order_wating(self, view): ...", "order_wating is not a hook; did you mean 'order_waiting'?"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_with_its_version(install: Install, body: str, said: str) -> None:
    """F-05, K 135: who, which version, what was expected."""
    install("mine", policy("mine", body), version="7.0")
    message = refused("mine")
    assert "scheduler 'mine' from plug-mine 7.0" in message
    assert said in message


def test_something_that_is_no_policy_is_refused(install: Install) -> None:
    """F-03: the wrong type."""
    install("mine", policy("mine").replace("(SchedulerPolicy)", "").replace("pass", "api_level = 1"))
    assert "must be a subclass of core.policy.SchedulerPolicy" in refused("mine")


def test_two_plugins_with_one_name_are_refused_naming_both(install: Install) -> None:
    """K 135."""
    install("one", policy("same", kind="One"))
    install("same", policy("same", kind="Two"))
    registry = Registry()
    registry.resolve("scheduler", "same")
    with capture_logs() as lines:
        registry.available("scheduler")
    (line,) = [line for line in lines if line["event"] == "plugin_ignored"]
    assert "the name is taken by plug-same 1.2.3" in line["reason"]
    install("fcfs", policy("fcfs"))
    said = refused("fcfs")
    assert "scheduler 'fcfs' from plug-fcfs 1.2.3: the name is taken by mainspring" in said


def test_a_broken_plugin_that_nobody_selected_only_warns(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """F-04: normal start, one warning each; help and version work."""
    install("bad", "raise RuntimeError('no such device')")
    install("quits", "raise SystemExit(3)")
    with capture_logs() as lines:
        assert start("fcfs")
        names = [info.name for info in Registry().available("scheduler")]
    assert "fcfs" in names
    warned = sorted((line["plugin"], line["origin"]) for line in lines if line["event"] == "plugin_ignored")
    assert warned == [("bad", "plug-bad"), ("quits", "plug-quits")]
    with pytest.raises(SystemExit) as done, capture_logs():
        main(["--version"])
    assert done.value.code == 0
    assert "mainspring" in capsys.readouterr().out


def test_a_broken_plugin_named_like_a_built_in_does_not_stop_that(install: Install) -> None:
    """F-04: nobody selected it; the built-in is what the name has always meant."""
    install("fcfs", "raise RuntimeError('no such device')")
    with capture_logs() as lines:
        assert type(start("fcfs")).__name__ == "Fcfs"
    (line,) = [line for line in lines if line["event"] == "plugin_ignored"]
    assert (line["plugin"], line["origin"], line["reason"]) == ("fcfs", "plug-fcfs", "no such device")
    install("gone", "raise RuntimeError('no such device')")
    assert "plugin 'gone' of plug-gone: RuntimeError: no such device" in refused("gone")


@pytest.mark.parametrize("entry_points", [None, b"\xff\xfe"])
@pytest.mark.parametrize("metadata", [None, b"\xff\xfe\x00garbage", b"Name: x\nVersion: \n"])
def test_damaged_metadata_of_one_package_stops_nobody_else(
    install: Install, tmp_path: Path, metadata: bytes | None, entry_points: bytes | None
) -> None:
    """F-06."""
    install("mine", policy("mine"))
    damaged = tmp_path / "site" / "damaged-1.0.dist-info"
    damaged.mkdir()
    points = b"[mainspring]\ndamaged = no_such_module\n" if entry_points is None else entry_points
    (damaged / "entry_points.txt").write_bytes(points)
    if metadata is not None:
        (damaged / "METADATA").write_bytes(metadata)
    with capture_logs() as lines:
        assert type(start("mine")).__name__ == "Mine"
        names = [info.name for info in Registry().available("scheduler")]
    assert {"mine", "fcfs"} <= set(names)
    assert any("damaged" in str(line) for line in lines if line["event"] in ("plugin_ignored", "distribution_ignored"))


def test_a_name_that_is_a_path_says_what_is_wrong_with_it() -> None:
    with pytest.raises(PluginError, match=r"scheduler\.use = 'json:nothing': cannot be loaded: AttributeError"):
        start("json:nothing")
    with pytest.raises(PluginError, match="cannot be loaded: ModuleNotFoundError"):
        start("no.such.module:Policy")
    with pytest.raises(ConfigError, match="there is no such scheduler"):
        start("../fcfs")
