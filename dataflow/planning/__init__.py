"""Lowered -> Plan: segments, lifetimes and the offset of every value."""
