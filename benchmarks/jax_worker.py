"""JAX's side of training.py: runs in an interpreter that has jax; answers as peer.py says.

Arguments: network, folder. The folder has the batch (batch.npz) and PyTorch's first weights (weights.npz), with which
it begins. One jitted step; convolutions with channels last, which XLA prefers on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peer import answer

Weights = dict[str, Any]


def dense(w: Weights, name: str, x: Any) -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def mlp(w: Weights, x: Any) -> Any:
    return dense(w, "2", jax.nn.relu(dense(w, "0", x)))


def conv(w: Weights, name: str, x: Any) -> Any:
    kernel = w[f"{name}.weight"].transpose(2, 3, 1, 0)
    y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y + w[f"{name}.bias"]


def pool(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def cnn(w: Weights, x: Any) -> Any:
    h = pool(jax.nn.relu(conv(w, "0", x.transpose(0, 2, 3, 1))))
    h = pool(jax.nn.relu(conv(w, "3", h)))
    return dense(w, "7", h.transpose(0, 3, 1, 2).reshape(len(x), -1))


def norm(w: Weights, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def encoder(w: Weights, x: Any, heads: int = 4) -> Any:
    h = w["words.weight"][x] + w["places"]
    n, t, d = h.shape
    layer = 0
    while f"layers.{layer}.qkv.weight" in w:
        at = f"layers.{layer}."
        q, k, v = jnp.moveaxis(dense(w, at + "qkv", norm(w, at + "norm1", h)).reshape(n, t, 3, heads, -1), 2, 0)
        scores = jnp.einsum("nthd,nshd->nhts", q, k) / np.sqrt(d // heads).astype(np.float32)
        y = jnp.einsum("nhts,nshd->nthd", jax.nn.softmax(scores), v)
        h = h + dense(w, at + "proj", y.reshape(n, t, d))
        inner = jax.nn.gelu(dense(w, at + "fc1", norm(w, at + "norm2", h)), approximate=False)
        h = h + dense(w, at + "fc2", inner)
        layer += 1
    return dense(w, "head", norm(w, "norm", h))


NETWORKS: dict[str, Callable[[Weights, Any], Any]] = {"mlp": mlp, "cnn": cnn, "encoder": encoder}


def stepped(network: Callable[[Weights, Any], Any]) -> Callable[..., Any]:
    """A jitted AdamW step: (weights, first, second moments, count, x, labels) to the new ones and the loss."""
    rate, decay, b1, b2, tiny = 1e-3, 0.01, 0.9, 0.999, 1e-8

    def loss_of(w: Weights, x: Any, labels: Any) -> Any:
        logits = jax.nn.log_softmax(network(w, x))
        return -jnp.take_along_axis(logits, labels[..., None], -1).mean()

    def step(w: Weights, m: Weights, v: Weights, count: Any, x: Any, labels: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(w, x, labels)
        count = count + 1
        m = jax.tree.map(lambda a, b: b1 * a + (1 - b1) * b, m, g)
        v = jax.tree.map(lambda a, b: b2 * a + (1 - b2) * b * b, v, g)
        first, second = 1 - b1**count, 1 - b2**count
        w = jax.tree.map(
            lambda p, a, b: p * (1 - rate * decay) - rate * (a / first) / (jnp.sqrt(b / second) + tiny), w, m, v
        )
        return w, m, v, count, loss

    return jax.jit(step, donate_argnums=(0, 1, 2, 3))


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    with np.load(folder / "weights.npz") as file:
        w = {key: jnp.asarray(file[key]) for key in file.files}
    batch = np.load(folder / "batch.npz")
    x, labels = jnp.asarray(batch["x"]), jnp.asarray(batch["labels"])
    zeros = jax.tree.map(jnp.zeros_like, w)
    state = (w, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros(()))
    compiled = stepped(NETWORKS[name])

    def step() -> float:
        nonlocal state
        *state, loss = compiled(*state, x, labels)
        return float(loss)

    answer(jax.__version__, step)


if __name__ == "__main__":
    main()
