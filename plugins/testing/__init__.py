"""Fakes and builders for tests of the kernel and of policies: no model, no GPU, no wall clock."""
