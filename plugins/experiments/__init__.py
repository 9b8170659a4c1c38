"""Policy A/B: an experiment file in, paired runs, and a verdict that says when it cannot be had."""
