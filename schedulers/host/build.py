"""Putting a configured policy together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.config import SchedulerConfig
from ...core.errors import MainspringError, PluginError
from ...core.policy import PolicyContext, SchedulerPolicy


def make_policy(make: Callable[..., Any], config: SchedulerConfig, context: PolicyContext) -> SchedulerPolicy:
    """The configured policy inside its wrappers; ``make(slot, use, options, *arguments)`` builds plugins."""
    use = config.use
    try:
        policy: SchedulerPolicy = make("scheduler", use, config.options, context)
        for entry in reversed(config.wrap):  # the outermost stands first
            options = {"use": entry} if isinstance(entry, str) else dict(entry)
            use = str(options.pop("use", ""))
            policy = make("wrapper", use, options, context, policy)
    except MainspringError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"scheduler plugin {use!r} cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(policy, SchedulerPolicy):
        raise PluginError(f"wrapper {use!r} made {type(policy).__name__}, expected a SchedulerPolicy")
    return policy
