"""Passes over what training adds to a model: gradients, their sums and norms."""
