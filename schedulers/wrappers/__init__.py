"""Wrappers for ``scheduler.wrap``: each composes over any policy and changes one thing about it."""
