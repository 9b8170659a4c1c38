"""Parts of ``gpu_check.py``."""
