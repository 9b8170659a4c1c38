"""Kernels for devices, as source text, and what launches them."""
