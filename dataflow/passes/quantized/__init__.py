"""Passes over quantized values: which products and convolutions compute with integers, and how these lie."""
