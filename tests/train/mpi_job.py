"""A job of the tests: trains a small network alone or with others, and writes losses and weights.

Arguments: file to write, number of steps, batch size, accumulate, checkpoint folder or "-", resume or "-", what fails.
"""

import os
import signal
import sys

import numpy as np

import dataflow as df


def network() -> df.Model:
    random = np.random.default_rng(0)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 6))
    hidden = df.ops.tanh(df.ops.matmul(x, g.parameter("a", random.standard_normal((6, 16)).astype(np.float32) / 3)))
    g.output("y", df.ops.matmul(hidden, g.parameter("b", random.standard_normal((16, 3)).astype(np.float32) / 4)))
    return df.Model(g.build())


def main() -> None:
    target, epochs, batch_size, accumulate, folder, resume, fault = sys.argv[1:]
    random = np.random.default_rng(1)
    data = {"x": random.standard_normal((103, 6)).astype(np.float32), "labels": random.integers(0, 3, 103)}
    data["labels"][::7] = -100  # shares of a batch have other weights
    parallel = None if os.environ.get("ALONE") else "data"
    optimizer = df.optim.AdamW(lr=1e-2)
    settings = {"accumulate": int(accumulate), "clip_norm": 0.5, "threads": 1, "devices": ["cpu"], "parallel": parallel}
    trainer = df.Trainer(network(), "cross_entropy", optimizer, **settings)
    rank = trainer.collectives.rank if trainer.collectives else 0

    def fail(event):
        if fault != "-" and rank == 1 and event.step == 3:
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a callback's fault")

    more = {} if folder == "-" else {"checkpoint": folder, "resume": None if resume == "-" else resume}
    history = trainer.fit(
        data, epochs=int(epochs), batch_size=int(batch_size), callbacks=[fail], progress=False, **more
    )
    weights = {name: trainer.model.parameters[name].array for name in ("a", "b")}
    np.savez(f"{target}.{rank}.npz", loss=history.steps["loss"], norm=history.steps["gradient_norm"], **weights)


main()
