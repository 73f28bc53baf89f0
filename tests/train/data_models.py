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
