"""Small models for the tests of data sources."""

from __future__ import annotations

import numpy as np

import dataflow as df


def classifier(features: int = 4, classes: int = 3, name: str = "x") -> df.Model:
    """Logits of a linear classifier."""
    g = df.GraphBuilder("classifier")
    x = g.input(name, df.float32, ("batch", features))
    w = g.parameter("w", np.random.default_rng(0).normal(size=(features, classes)).astype(np.float32))
    g.output("logits", df.ops.matmul(x, w))
    return df.Model(g.build())


def image_classifier(shape: tuple[object, ...], dtype: df.DType = df.float32, classes: int = 2) -> df.Model:
    """Logits of the means of the channels of images with axes ``shape`` after the batch."""
    g = df.GraphBuilder("images")
    x = g.input("pixels", dtype, ("batch", *shape))
    first = shape[0] in (1, 3)
    x = df.ops.cast(x, to=df.float32)
    means = df.ops.reduce_mean(x, axes=(2, 3) if first else (1, 2), keepdims=False)
    w = g.parameter("w", np.random.default_rng(0).normal(size=(shape[0 if first else 2], classes)).astype(np.float32))
    g.output("logits", df.ops.matmul(means, w))
    return df.Model(g.build())
