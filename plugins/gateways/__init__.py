"""Gateways: the edges that clients connect to."""
