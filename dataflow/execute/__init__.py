"""Plan -> results: opened devices, variables and replayed programs."""
