"""Graph -> Lowered: a device and kernel for each node, a memory and storage for each value."""
