"""Passes that round values to 16 bits, once, where that is what a precision means."""
