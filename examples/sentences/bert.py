"""A classifier of texts over the weights of a BERT as Hugging Face's libraries save them, without these libraries."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import dataflow as df
from dataflow import ops

Weights = dict[str, np.ndarray]


def classifier(folder: Path, classes: int, seed: int = 0, layers: int | None = None) -> df.Model:
    """The encoder of a folder, the mean of its tokens, and a linear layer with random weights behind it.

    Inputs are ``input_ids`` and ``attention_mask``, both int64 (texts, tokens); the output ``logits`` (texts, classes).

    Args:
        folder: with ``config.json`` and ``model.safetensors`` of a ``BertModel``.
        classes: how many there are.
        seed: of the linear layer.
        layers: of the encoder, the first ones; all by default.
    """
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    g = df.GraphBuilder("classifier")
    ids = g.input("input_ids", df.int64, ("texts", "tokens"))
    mask = g.input("attention_mask", df.int64, ("texts", "tokens"))
    seen = ops.cast(mask, to=df.float32)

    x = _embedded(g, ids, weights, config["layer_norm_eps"])
    hidden = ops.reshape((1.0 - seen) * -1e4, shape=(ids.shape[0], 1, 1, ids.shape[1]))  # beside the scores
    for index in range(config["num_hidden_layers"] if layers is None else layers):
        x = _layer(g, x, hidden, weights, f"encoder.layer.{index}", config)

    seen = ops.reshape(seen, shape=(*ids.shape, 1))
    total = ops.reduce_sum(x * seen, axes=(1,), keepdims=False)
    mean = total / ops.reduce_sum(seen, axes=(1,), keepdims=False)
    random = np.random.default_rng(seed)
    head = random.standard_normal((config["hidden_size"], classes)).astype(np.float32) * np.float32(0.02)
    logits = ops.matmul(mean, g.parameter("classifier.weight", head))
    g.output("logits", logits + g.parameter("classifier.bias", np.zeros(classes, np.float32)))
    return df.Model(g.build())


def _embedded(g: df.GraphBuilder, ids: df.Value, weights: Weights, epsilon: float) -> df.Value:
    """The sum of the embeddings of token, position and type 0, normalized."""
    words, positions, types = (
        g.parameter(name, weights[name])
        for name in (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
    )
    size = words.shape[1]
    positions = ops.slice(positions, starts=(0, 0), stops=(ids.shape[1], size), steps=(1, 1))
    x = ops.gather(words, ids, axis=0) + positions + types[0]
    return _normalized(g, x, weights, "embeddings.LayerNorm", epsilon)


def _layer(
    g: df.GraphBuilder, x: df.Value, hidden: df.Value, weights: Weights, prefix: str, config: dict[str, Any]
) -> df.Value:
    """Attention and two products, each added to what it reads and normalized."""
    texts, tokens, size = x.shape
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
    apart = (texts, tokens, heads, size // heads)
    query, key, value = (
        ops.reshape(
            _linear(g, x, weights, f"{prefix}.attention.self.{name}"), shape=(texts, tokens, heads, size // heads)
        )
        for name in ("query", "key", "value")
    )
    scores = ops.matmul(ops.transpose(query, perm=(0, 2, 1, 3)), ops.transpose(key, perm=(0, 2, 3, 1)))
    chances = ops.softmax(scores / math.sqrt(apart[-1]) + hidden, axis=-1)
    mixed = ops.transpose(ops.matmul(chances, ops.transpose(value, perm=(0, 2, 1, 3))), perm=(0, 2, 1, 3))
    mixed = ops.reshape(mixed, shape=(texts, tokens, size))
    mixed = _linear(g, mixed, weights, f"{prefix}.attention.output.dense")
    x = _normalized(g, x + mixed, weights, f"{prefix}.attention.output.LayerNorm", epsilon)
    inner = ops.gelu(_linear(g, x, weights, f"{prefix}.intermediate.dense"))
    outer = _linear(g, inner, weights, f"{prefix}.output.dense")
    return _normalized(g, x + outer, weights, f"{prefix}.output.LayerNorm", epsilon)


def _linear(g: df.GraphBuilder, x: df.Value, weights: Weights, name: str) -> df.Value:
    weight = g.parameter(f"{name}.weight", np.ascontiguousarray(weights[f"{name}.weight"].T))
    return ops.matmul(x, weight) + g.parameter(f"{name}.bias", weights[f"{name}.bias"])


def _normalized(g: df.GraphBuilder, x: df.Value, weights: Weights, name: str, epsilon: float) -> df.Value:
    scale = g.parameter(f"{name}.weight", weights[f"{name}.weight"])
    bias = g.parameter(f"{name}.bias", weights[f"{name}.bias"])
    return g.add(ops.layer_norm, (x, scale, bias), {"axis": -1, "epsilon": epsilon}).outputs[0]
