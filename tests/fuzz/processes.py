"""Training in several processes of MPI against training in one: random models and options, runs that others resume.

A model maps each sample by itself, since a batch is shared out; the processes of a job wait for cases, as starting
them takes longer than a case.
"""

from __future__ import annotations

import functools
import json
import os
import random as standard
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dataflow as df

from .findings import ROOT, Finding, Outcome, ended_by
from .making import Array, ops

MPIEXEC = shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or shutil.which("mpiexec")
SECONDS = 50.0  # for a run, with a busy machine in mind
CLOSE = 2e-3  # of the largest change: optimizers enlarge what the order of sums leaves
UNARY = ("tanh", "relu", "sigmoid", "gelu", "sin", "softplus")


@dataclass
class Job:
    """What is trained, on which data and how.

    Attributes:
        model: maps samples.
        loss: of its outputs.
        data: all samples; the last ones validate.
        options: of the trainer, but for what the processes share out.
        optimizer: gets a fresh one.
        shards: for the first run and the one that resumes.
        counts: processes of these; without a second one nothing is resumed.
        fit: further arguments.
    """

    model: df.Model
    loss: Any
    data: dict[str, Array]
    options: dict[str, Any]
    optimizer: Any
    shards: list[str | None]
    counts: list[int]
    fit: dict[str, Any]

    @property
    def described(self) -> str:
        """For people."""
        given = {k: v for k, v in self.options.items() if k != "metrics"}
        return f"{self.loss} {self.optimizer} {given} {self.fit} processes={self.counts} shards={self.shards}"

    def run(self, epochs: int, parallel: Any, shard: str | None, **more: Any) -> dict[str, Array]:
        """Losses, norms, figures of validation and parameters of a run of so many epochs."""
        held = {key: array[-5:] for key, array in self.data.items()}
        given = {key: array[:-5] for key, array in self.data.items()}
        with df.Trainer(
            self.model, self.loss, self.optimizer, parallel=parallel, shard=shard, tie=False, **self.options
        ) as trainer:
            history = trainer.fit(given, held, epochs=epochs, progress=False, **self.fit, **more)
        steps = history.steps if trainer.steps else {}  # there are none where no label counts
        found = {f"step {key}": np.array(steps.get(key, ())) for key in ("loss", "gradient_norm")}
        found |= {f"epoch {key}": np.array(history[key]) for key in ("loss", "val_loss")}
        return found | {name: p.array.copy() for name, p in self.model.parameters.items()}


def made(seed: int, case: int) -> Job:
    """The job of a case."""
    random = standard.Random(f"{seed}:{case}")
    arrays = np.random.default_rng(random.getrandbits(32))
    samples = random.randint(6, 30)
    width, classes = random.randint(1, 6), random.randint(2, 5)
    data: dict[str, Array] = {"x": arrays.standard_normal((samples, width)).astype(np.float32)}
    g = df.GraphBuilder("shared")
    x = g.input("x", df.float32, ("B", width))
    if random.random() < 0.3:
        data["i"] = arrays.integers(0, 7, samples)
        rows = g.parameter("rows", arrays.standard_normal((7, width)).astype(np.float32))
        x = ops.add(x, ops.gather(rows, g.input("i", df.int64, ("B",)), axis=0))
    for index in range(random.randint(1, 4)):
        x = _layer(g, x, index, random, arrays)
    y = ops.matmul(x, _matrix(g, "head", int(x.type.shape[1]), classes, arrays))
    g.output("y", y)
    loss = _loss(g, x, y, data, random, arrays)
    counts = [random.choice((2, 2, 3))]
    if random.random() < 0.4:
        counts.append(random.choice((1, 2, 3)))
    accumulate = random.choice((1, 1, 2, 3))
    options: dict[str, Any] = {
        "accumulate": accumulate,
        "clip_norm": random.choice((None, None, 0.3, 10.0)),
        "clip_value": random.choice((None, None, None, 0.02)),
        "devices": [random.choice(("cpu", "cpu", "cpu", "numpy"))],
        "threads": 1,
        "fuse": random.random() < 0.8,
        "memory": random.choice((None, None, "1x")),
        "loss_scale": random.choice((None, None, None, 64.0, "dynamic")),
        "seed": random.randrange(100),
    }
    optimizer = random.choice((
        df.optim.SGD(lr=0.05), df.optim.SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
        df.optim.AdamW(lr=0.02, epsilon=1e-2), df.optim.Adam(lr=0.02, epsilon=1e-2),
        df.optim.RMSprop(lr=0.01, epsilon=1e-1), df.optim.Adagrad(lr=0.05, epsilon=1e-2),
    ))  # fmt: skip
    fit = {"batch_size": random.choice((1, 2, 3, 5, 8, samples)), "shuffle": random.random() < 0.7}
    if random.random() < 0.2:
        data["sample_weight"] = arrays.choice([0.0, 0.5, 1.0, 4.0], samples).astype(np.float32)
    shards = [random.choice((None, None, "optimizer", "gradients")) for _ in counts]
    return Job(df.Model(g.build()), loss, data, options, optimizer, shards, counts, fit)


def _matrix(g: df.GraphBuilder, name: str, rows: int, columns: int, arrays: np.random.Generator) -> Any:
    return g.parameter(name, (arrays.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32))


def _layer(g: df.GraphBuilder, x: Any, index: int, random: standard.Random, arrays: np.random.Generator) -> Any:
    """A layer over samples of a vector each."""
    size = int(x.type.shape[1])
    kind = random.choice(("linear", "linear", "norm", "residual", "scaled", "split", "softmax"))
    if kind == "norm":
        scale = g.parameter(f"scale{index}", np.ones(size, np.float32))
        return ops.layer_norm(x, scale, None, axis=1)
    if kind == "scaled":
        return ops.mul(x, g.parameter(f"factor{index}", np.float32(random.uniform(0.5, 1.5))))
    if kind == "split":
        return ops.concat(ops.tanh(x), ops.mul(x, x), axis=1)
    if kind == "softmax":
        return ops.mul(x, ops.softmax(x, axis=1))
    out = size if kind == "residual" else random.randint(1, 7)
    y = ops.matmul(x, _matrix(g, f"w{index}", size, out, arrays))
    if random.random() < 0.6:
        y = ops.add(y, g.parameter(f"b{index}", (0.1 * arrays.standard_normal(out)).astype(np.float32)))
    y = getattr(ops, random.choice(UNARY))(y)
    return ops.add(x, y) if kind == "residual" else y


def _loss(
    g: df.GraphBuilder, x: Any, y: Any, data: dict[str, Array], random: standard.Random, arrays: np.random.Generator
) -> Any:
    """A loss, and its labels among the data; some don't count."""
    samples, classes = len(data["x"]), int(y.type.shape[1])
    kind = random.choice(("classes", "classes", "numbers", "yes", "several", "function"))
    if kind == "classes":
        data["labels"] = np.where(arrays.uniform(size=samples) < 0.25, -100, arrays.integers(0, classes, samples))
        weights = tuple(float(w) for w in arrays.uniform(0.2, 2, classes)) if random.random() < 0.4 else None
        return df.losses.CrossEntropy(weights, random.choice((0.0, 0.1)))
    data["labels"] = arrays.standard_normal((samples, classes)).astype(np.float32)
    if kind == "numbers":
        data["counts"] = arrays.integers(0, 3, (samples, classes)).astype(np.float32)
        return df.losses.Huber(1.0, weights="counts")
    if kind == "yes":
        data["labels"] = arrays.integers(0, 2, (samples, classes))
        return df.losses.Focal(random.choice((0.0, 2.0)))
    if kind == "several":  # every element counts, so means of shares add up
        g.output("inner", x)
        data["inner_labels"] = arrays.standard_normal((samples, int(x.type.shape[1]))).astype(np.float32)
        return {"y": ("mse", "labels", 0.7), "inner": ("mae", "inner_labels", 0.2)}
    return lambda g, outputs, batch: ops.mul(ops.sin(outputs["y"]), batch["labels"])


def target(seed: int, case: int) -> Outcome:
    """Trains what a case says; see ``campaign.Target``."""
    if MPIEXEC is None:
        raise RuntimeError("there is no mpiexec; the extra test installs MPICH")
    job = made(seed, case)
    begin = {name: p.array.copy() for name, p in job.model.parameters.items()}
    epochs = 2 + 2 * (len(job.counts) > 1)
    try:
        alone = job.run(epochs, None, None)
    except Exception as error:
        return ended_by(error, job.described)
    with tempfile.TemporaryDirectory() as folder:
        for stage, count in enumerate(job.counts):
            text, found = _job(count).train(seed, case, stage, Path(folder))
            if text:
                where = f"{text.strip().splitlines()[-1][:80]} | stage {stage} of {count}"
                return Outcome("failed", (Finding("foreign", where, f"{job.described}: {text}"),))
    for name, array in found[0].items():
        if any(other[name].tobytes() != array.tobytes() for other in found[1:] if " " not in name):
            return _different(job, name, "processes have other bits", [f[name] for f in found])
        expected = alone[name]
        size = np.abs(expected - begin[name]).max(initial=1e-3) if name in begin else np.abs(expected).max(initial=1e-3)
        size = 1.0 if np.isnan(size) else size
        if array.shape != expected.shape or not np.allclose(array, expected, rtol=0, atol=CLOSE * size, equal_nan=True):
            return _different(job, name, "not as alone", [array, expected])
    return Outcome("ran")


def _different(job: Job, name: str, what: str, arrays: list[Array]) -> Outcome:
    kind = name if " " in name else "parameter"
    where = f"{what} | {kind} | {job.shards} {'resumed' if len(job.counts) > 1 else ''}"
    text = f"{job.described}: {name}: {' '.join(str(a.ravel()[:8]) for a in arrays)}"
    return Outcome("different", (Finding("different", where, text),))


class _Processes:
    """A job of MPI that waits for cases."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.process: subprocess.Popen[str] | None = None

    def train(self, seed: int, case: int, stage: int, folder: Path) -> tuple[str, list[dict[str, Array]]]:
        """What went wrong, or nothing, and what each process found."""
        if self.process is None or self.process.poll() is not None:
            command = [str(MPIEXEC), "-n", str(self.count), sys.executable, "-m", "tests.fuzz.processes"]
            environment = {**os.environ, "DATAFLOW_NUM_THREADS": "1"}
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([seed, case, stage, str(folder)]) + "\n")
        self.process.stdin.flush()
        said = []
        while select.select([self.process.stdout], [], [], SECONDS)[0]:
            line = self.process.stdout.readline()
            if line == "done\n":
                found = []
                for rank in range(self.count):
                    with np.load(folder / f"{stage}.{rank}.npz") as file:
                        found.append(dict(file))
                return "", found
            said.append(line)
            if not line:
                break
        text = "".join(said[-40:]) or f"{self.count} processes took more than {SECONDS:.0f} s"
        self.process.kill()
        self.process.wait()
        return text, []


@functools.cache
def _job(count: int) -> _Processes:
    return _Processes(count)


def main() -> None:
    """A process of a job: trains the cases that rank 0 reads until there are no more."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    while True:
        line = world.bcast(sys.stdin.readline() if world.rank == 0 else None)
        if not line:
            return
        seed, case, stage, folder = json.loads(line)
        try:
            job = made(seed, case)
            epochs = 2 + 2 * stage
            more: dict[str, Any] = {}
            if len(job.counts) > 1:
                more = {"checkpoint": f"{folder}/kept", "resume": "auto" if stage else None}
            parallel = "data" if world.size > 1 else None
            found = job.run(epochs, parallel, job.shards[stage] if parallel else None, **more)
            np.savez(f"{folder}/{stage}.{world.rank}.npz", **found)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            world.Abort(1)
        world.barrier()
        if world.rank == 0:
            sys.stdout.write("done\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
