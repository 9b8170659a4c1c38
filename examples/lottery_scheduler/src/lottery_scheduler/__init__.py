"""The lottery scheduling policy for mainspring."""
