"""The networks of torch_networks.py for JAX, over weights by PyTorch's names; convolutions have channels last.

``remat`` wraps a block: with ``jax.checkpoint`` it is computed again in backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Weights = dict[str, Any]
Remat = Callable[[Callable[..., Any]], Callable[..., Any]]
Network = Callable[[Weights, Any, Remat], Any]


def dense(w: Weights, name: str, x: Any) -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def conv(w: Weights, name: str, x: Any, stride: int = 1, pad: int = 0) -> Any:
    kernel = w[f"{name}.weight"].transpose(2, 3, 1, 0)
    pads = ((pad, pad), (pad, pad))
    y = jax.lax.conv_general_dilated(x, kernel, (stride,) * 2, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    bias = w.get(f"{name}.bias")
    return y if bias is None else y + bias


def pool(x: Any, size: int = 2, stride: int = 2, pad: int = 0) -> Any:
    pads = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, size, size, 1), (1, stride, stride, 1), pads)


def batch_norm(w: Weights, name: str, x: Any) -> Any:
    mean = x.mean((0, 1, 2))
    variance = ((x - mean) ** 2).mean((0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def layer_norm(w: Weights, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def part(w: Weights, name: str) -> Weights:
    """The weights below a name."""
    return {key.removeprefix(name + "."): array for key, array in w.items() if key.startswith(name + ".")}


def mlp(w: Weights, x: Any, remat: Remat) -> Any:
    return dense(w, "2", jax.nn.relu(dense(w, "0", x)))


def small(w: Weights, x: Any, remat: Remat) -> Any:
    return dense(w, "0", x)


def cnn(w: Weights, x: Any, remat: Remat) -> Any:
    h = pool(jax.nn.relu(conv(w, "0", x.transpose(0, 2, 3, 1))))
    h = pool(jax.nn.relu(conv(w, "3", h)))
    return dense(w, "7", h.transpose(0, 3, 1, 2).reshape(len(x), -1))


def layers(w: Weights, h: Any, remat: Remat, heads: int, causal: bool = False, approximate: bool = False) -> Any:
    """The layers of a transformer."""
    n, t, d = h.shape
    mask = jnp.tril(jnp.ones((t, t), bool)) if causal else None

    def layer(w: Weights, h: Any) -> Any:
        q, k, v = jnp.moveaxis(dense(w, "qkv", layer_norm(w, "norm1", h)).reshape(n, t, 3, heads, -1), 2, 0)
        scores = jnp.einsum("nthd,nshd->nhts", q, k) / np.sqrt(d // heads).astype(np.float32)
        scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
        y = jnp.einsum("nhts,nshd->nthd", jax.nn.softmax(scores), v)
        h = h + dense(w, "proj", y.reshape(n, t, d))
        return h + dense(w, "fc2", jax.nn.gelu(dense(w, "fc1", layer_norm(w, "norm2", h)), approximate=approximate))

    block, number = remat(layer), 0
    while f"layers.{number}.qkv.weight" in w:
        h = block(part(w, f"layers.{number}"), h)
        number += 1
    return layer_norm(w, "norm", h)


def encoder(w: Weights, x: Any, remat: Remat) -> Any:
    return dense(w, "head", layers(w, w["words.weight"][x] + w["places"], remat, 4))


def gpt(w: Weights, x: Any, remat: Remat) -> Any:
    h = layers(w, w["words.weight"][x] + w["places"], remat, 4, causal=True, approximate=True)
    return h @ w["words.weight"].T


def vit(w: Weights, x: Any, remat: Remat) -> Any:
    tiles = conv(w, "tiles", x.transpose(0, 2, 3, 1), 16).reshape(len(x), -1, 192)
    h = jnp.concatenate([jnp.broadcast_to(w["first"], (len(x), 1, 192)), tiles], 1) + w["places"]
    return dense(w, "head", layers(w, h, remat, 3)[:, 0])


def lstm(w: Weights, x: Any, remat: Remat) -> Any:
    h = x.transpose(1, 0, 2)
    for layer in range(2):
        above, beside = w[f"rnn.weight_ih_l{layer}"], w[f"rnn.weight_hh_l{layer}"]
        gates = h @ above.T + (w[f"rnn.bias_ih_l{layer}"] + w[f"rnn.bias_hh_l{layer}"])

        def step(state: Any, row: Any, beside: Any = beside) -> Any:
            i, f, g, o = jnp.split(row + state[0] @ beside.T, 4, -1)
            cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
            out = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (out, cell), out

        zeros = jnp.zeros((len(x), beside.shape[1]), x.dtype)
        _, h = jax.lax.scan(remat(step), (zeros, zeros), gates)
    return dense(w, "head", h.mean(0))


def resnet50(w: Weights, x: Any, remat: Remat) -> Any:
    h = pool(jax.nn.relu(batch_norm(w, "1", conv(w, "0", x.transpose(0, 2, 3, 1), 2, 3))), 3, 2, 1)

    def block(stride: int) -> Callable[[Weights, Any], Any]:
        def run(w: Weights, x: Any) -> Any:
            y = jax.nn.relu(batch_norm(w, "main.1", conv(w, "main.0", x)))
            y = jax.nn.relu(batch_norm(w, "main.4", conv(w, "main.3", y, stride, 1)))
            y = batch_norm(w, "main.7", conv(w, "main.6", y))
            side = batch_norm(w, "side.1", conv(w, "side.0", x, stride)) if "side.0.weight" in w else x
            return jax.nn.relu(y + side)

        return remat(run)

    number = 4
    for stage, count in enumerate((3, 4, 6, 3)):
        for index in range(count):
            h = block(2 if stage and not index else 1)(part(w, str(number)), h)
            number += 1
    return dense(w, str(number + 2), h.mean((1, 2)))


def unet(w: Weights, x: Any, remat: Remat) -> Any:
    def twice(w: Weights, x: Any) -> Any:
        h = jax.nn.relu(batch_norm(w, "1", conv(w, "0", x, 1, 1)))
        return jax.nn.relu(batch_norm(w, "4", conv(w, "3", h, 1, 1)))

    block, kept = remat(twice), []
    h = x.transpose(0, 2, 3, 1)
    for index in range(4):
        h = block(part(w, f"down.{index}"), h if index == 0 else pool(h))
        kept.append(h)
    for index in (2, 1, 0):
        n, rows, columns, _ = h.shape
        kernel = w[f"up.{index}.weight"]  # inputs, outputs, 2, 2: its tiles don't overlap
        up = jnp.einsum("nijc,cdkl->nikjld", h, kernel).reshape(n, 2 * rows, 2 * columns, -1) + w[f"up.{index}.bias"]
        h = block(part(w, f"mix.{index}"), jnp.concatenate([kept[index], up], -1))
    return conv(w, "head", h).mean((1, 2))


NETWORKS: dict[str, Network] = {
    "small": small, "mlp": mlp, "cnn": cnn, "encoder": encoder, "gpt": gpt, "vit": vit, "lstm": lstm,
    "resnet50": resnet50, "unet": unet,
}  # fmt: skip
