"""Watching a run: its clock and memory, statistics of tensors, logs and charts."""
