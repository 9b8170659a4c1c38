"""Mainspring: an LLM serving microkernel whose policies are plugins.

``mainspring.Engine`` (asynchronous) and ``mainspring.SyncEngine`` run a model in this process; they are imported on
first use, so that tools which need no model stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.plugins.engine import Engine, Result, SyncEngine

__version__ = "0.1.0"
__all__ = ["Engine", "Result", "SyncEngine", "__version__"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from mainspring.plugins import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
