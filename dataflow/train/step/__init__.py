"""Parts of a training step: its tensors, and its place among the micro-batches of a logical batch."""
