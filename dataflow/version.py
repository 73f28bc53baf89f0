"""The version of this package, and the name under which it is distributed."""

VERSION = "0.1.0"
DISTRIBUTION = "dataflow-engine"
