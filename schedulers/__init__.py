"""Scheduling policies, one per file; the file's name is the name in ``scheduler.use``."""
