"""The microkernel: messages, routing, the scheduler host, configuration and supervision.

Nothing here knows a concrete policy, model or wire format; names of plugins come as strings from
``plugins.toml``.  The modules form layers and import downwards only (see ``pyproject.toml``).
"""

if __name__ != "mainspring.core":
    raise ImportError(f"import mainspring.core, not {__name__}: two names for one file would make two sets of classes")
