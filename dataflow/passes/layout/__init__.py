"""Passes over how values lie in memory."""
