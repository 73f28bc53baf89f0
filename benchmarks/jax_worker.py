"""JAX's side of training.py and training_memory.py: runs in an interpreter that has jax; answers as peer.py says.

Arguments: network, folder, and ``remat`` to compute every block again in backward. The folder has the batch (batch.npz)
and PyTorch's first weights (weights.npz), with which it begins. One jitted step; convolutions with channels last, which
XLA prefers on a CPU. The memory that it answers with is not the process's, in which the compiler takes most, but what
XLA says that the step takes, and three times the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_networks import NETWORKS, Weights
from peer import answer


def stepped(network: Callable[[Weights, Any], Any]) -> Any:
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
    remat = jax.checkpoint if "remat" in sys.argv[3:] else lambda block: block
    with np.load(folder / "weights.npz") as file:
        kept = [key for key in file.files if not key.endswith(("running_mean", "running_var", "num_batches_tracked"))]
        w = {key: jnp.asarray(file[key]) for key in kept}
    batch = np.load(folder / "batch.npz")
    x, labels = jnp.asarray(batch["x"]), jnp.asarray(batch["labels"])
    zeros = jax.tree.map(jnp.zeros_like, w)
    state = (w, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros(()))
    compiled = stepped(lambda w, x: NETWORKS[name](w, x, remat)).lower(*state, x, labels).compile()
    found = compiled.memory_analysis()
    taken = 3 * sum(array.nbytes for array in w.values()) + found.temp_size_in_bytes

    def step() -> float:
        nonlocal state
        *state, loss = compiled(*state, x, labels)
        return float(loss)

    answer(jax.__version__, step, taken)


if __name__ == "__main__":
    main()
