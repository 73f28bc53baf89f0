"""Converters of ONNX's operators, one file per family."""
