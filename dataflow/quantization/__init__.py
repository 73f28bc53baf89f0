"""Models whose weights, or weights and activations, have few bits."""
