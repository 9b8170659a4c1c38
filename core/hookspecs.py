"""Pluggy hooks: registration and lifecycle only, called at start and stop, never per step.

A plugin is a module (or object) with any of these as ``@hookimpl``.  ``register`` is a callback
``register(name, factory, options_type=None)``; the kernel checks the factory completely when it is called.
"""

from __future__ import annotations

from typing import Any, Protocol

import pluggy

PROJECT = "mainspring"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register(Protocol):
    """The callback handed to a ``register_*`` hook."""

    def __call__(self, name: str, factory: Any, options: type | None = None) -> None: ...


@hookspec(historic=True)
def register_hosts(register: Register) -> None:
    """Offer scheduler actors (hosts): what owns the request records and runs a policy."""


@hookspec(historic=True)
def register_schedulers(register: Register) -> None:
    """Offer scheduling policies: subclasses of ``core.policy.SchedulerPolicy``."""


@hookspec(historic=True)
def register_wrappers(register: Register) -> None:
    """Offer wrappers for ``scheduler.wrap``: factories ``(options, context, inner policy)``."""


@hookspec(historic=True)
def register_allocators(register: Register) -> None:
    """Offer KV allocators."""


@hookspec(historic=True)
def register_samplers(register: Register) -> None:
    """Offer samplers."""


@hookspec(historic=True)
def register_executors(register: Register) -> None:
    """Offer executors."""


@hookspec(historic=True)
def register_gateways(register: Register) -> None:
    """Offer gateways: edges that clients connect to."""


@hookspec(historic=True)
def register_commands(register: Register) -> None:
    """Offer command-line verbs: functions that take an ``argparse`` sub-parser."""


@hookspec
def observe(message: Any, now: float) -> None:
    """See every routed message (metrics and trace sinks).  Must not block and must not raise."""


@hookspec
def on_start(kernel: Any) -> None:
    """The kernel is ready to serve."""


@hookspec
def on_stop(reason: str) -> None:
    """The kernel has stopped."""
