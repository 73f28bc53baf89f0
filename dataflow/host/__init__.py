"""What the process and its arguments need: validation, limits, memory of the system, forks, garbage collection."""
