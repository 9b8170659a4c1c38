"""Experiments on the traffic of a running server: shadow, switchback, replicas."""
