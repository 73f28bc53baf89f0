"""The layers of a model: products, convolutions and look-ups with a constant weight, by the names of their modules."""
