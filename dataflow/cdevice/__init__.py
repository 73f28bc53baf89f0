"""Devices behind the C contract of dataflow.h."""
