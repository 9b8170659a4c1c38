"""Readers of recorded traffic, and what can be asked of it without a model."""
