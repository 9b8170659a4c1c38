"""Samplers, one per file; the file's name is the name in ``sampler.use``."""
