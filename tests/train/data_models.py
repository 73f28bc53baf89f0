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


def text_classifier(words: int = 32, length: int | str = "length", classes: int = 2) -> df.Model:
    """Logits of the mean of the embeddings of tokens under their mask."""
    g, rng = df.GraphBuilder("texts"), np.random.default_rng(0)
    ids = g.input("input_ids", df.int64, ("batch", length))
    mask = g.input("attention_mask", df.int64, ("batch", length))
    table = g.parameter("table", rng.normal(size=(words, 8)).astype(np.float32))
    counted = df.ops.cast(mask, to=df.float32)
    count = df.ops.reduce_sum(counted, axes=(1,))
    counted = df.ops.reshape(counted, shape=(*mask.shape, 1))
    pooled = df.ops.reduce_sum(df.ops.mul(df.ops.gather(table, ids, axis=0), counted), axes=(1,), keepdims=False)
    pooled = df.ops.div(pooled, count)
    g.output("logits", df.ops.matmul(pooled, g.parameter("w", rng.normal(size=(8, classes)).astype(np.float32))))
    return df.Model(g.build())


def language_model(words: int = 32) -> df.Model:
    """Logits of the next token by the token before it alone."""
    g, rng = df.GraphBuilder("bigrams"), np.random.default_rng(0)
    ids = g.input("input_ids", df.int64, ("batch", "length"))
    table = g.parameter("table", rng.normal(size=(words, words)).astype(np.float32))
    g.output("logits", df.ops.gather(table, ids, axis=0))
    return df.Model(g.build())
