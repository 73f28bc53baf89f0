"""ONNX files: records, the reader and the writer."""
