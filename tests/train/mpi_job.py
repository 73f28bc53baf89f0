"""A job of the tests: trains a small network alone or with others, and writes losses and weights.

Arguments: file to write, number of steps, batch size, accumulate, checkpoint folder or "-", resume or "-", what fails,
what is shared out or "-".
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

import dataflow as df
from dataflow.train.joint import ACCUMULATOR
from dataflow.train.parallel import gradient_sums

gradient_sums.BUCKET = 100  # bytes: each gradient of the network has its own


def network() -> df.Model:
    random = np.random.default_rng(0)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 6))
    hidden = df.ops.tanh(df.ops.matmul(x, g.parameter("a", random.standard_normal((6, 16)).astype(np.float32) / 3)))
    g.output("y", df.ops.matmul(hidden, g.parameter("b", random.standard_normal((16, 3)).astype(np.float32) / 4)))
    return df.Model(g.build())


def main() -> None:
    target, epochs, batch_size, accumulate, folder, resume, fault, shard = sys.argv[1:]
    random = np.random.default_rng(1)
    data = {"x": random.standard_normal((103, 6)).astype(np.float32), "labels": random.integers(0, 3, 103)}
    data["labels"][::7] = -100  # shares of a batch have other weights
    parallel = None if os.environ.get("ALONE") else "data"
    optimizer = df.optim.AdamW(lr=1e-2)
    settings = {"accumulate": int(accumulate), "clip_norm": 0.5, "threads": 1, "devices": ["cpu"], "parallel": parallel}
    trainer = df.Trainer(network(), "cross_entropy", optimizer, shard=None if shard == "-" else shard, **settings)
    rank = trainer.collectives.rank if trainer.collectives else 0
    if fault == "caught":
        go_on(trainer, rank)
        return
    if fault in ("apart", "by hand"):
        folder = f"{folder}/{rank}"
    if fault == "by hand":
        trainer.resume(folder)
    finish, begun = gradient_sums.GradientSums.finish, []
    gradient_sums.GradientSums.finish = lambda sums: (begun.append(len(sums._begun)), finish(sums))[1]

    def fail(event):
        if fault in ("error", "kill", "interrupt") and rank == 1 and event.step == 3:
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
                return
            raise ValueError("a callback's fault")

    more = {} if folder == "-" else {"checkpoint": folder, "resume": None if resume == "-" else resume}
    held = {key: array[:21] for key, array in data.items()}
    try:
        history = trainer.fit(
            data, held, epochs=int(epochs), batch_size=int(batch_size), callbacks=[fail], progress=False, **more
        )
    except KeyboardInterrupt:
        # A launcher ends the others once one process has failed, and what they print may be lost: all write first.
        Path(f"{target}.{rank}.step").write_text(str(trainer.steps), encoding="utf-8")
        trainer.collectives.gather("interrupted")
        raise
    weights = {name: trainer.model.parameters[name].array for name in ("a", "b")}
    figures = {"loss": history.steps["loss"], "norm": history.steps["gradient_norm"], "held": history["val_loss"]}
    kept = sum(p.memory.get("state", 0) for name, p in trainer.plans().items() if name == "optimizer")
    tensors = trainer.programs.engine.variables._tensors
    accumulated = sum(t.operand.type.nbytes for name, t in tensors.items() if name.startswith(ACCUMULATOR))
    loaded = len(trainer.programs._trained._loaded)
    more = {"begun": max(begun, default=0), "kept": kept, "accumulated": accumulated, "loaded": loaded}
    np.savez(f"{target}.{rank}.npz", **more, **figures, **weights)


def go_on(trainer: df.Trainer, rank: int) -> None:
    """Labels of one share are out of range in the second step; what is caught there stops none of the others."""
    x = np.ones((8, 6), np.float32)
    for step in range(3):
        labels = np.arange(8) % 3
        labels[-1] = 7 if step == 1 else 0
        try:
            trainer.step({"x": x, "labels": labels})
        except df.DataflowError as error:
            sys.stdout.write(f"rank {rank}: {error}\n")
    sys.stdout.write(f"rank {rank}: {trainer.steps} steps\n")


main()
