"""Adapters: small tensors beside the weights of a model, which are trained in their place."""
