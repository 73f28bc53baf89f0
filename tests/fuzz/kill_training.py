"""Kills a training process at random instants until it is done, and compares its weights with a run left alone.

    python -m tests.fuzz.kill_training --kills 1000 --seed 1

A run saves after every optimizer step, so that most kills fall into a save. Each process resumes from what the one
before it left. When a run is done, its weights, the optimizer's state, the statistics of its batch norm and its history
must have the bits of the run that nobody killed, and nothing half-written may lie about; then another run begins, until
there were enough kills. Says what it found and writes it as JSON; ends with status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import dataflow as df
from dataflow import ops
from dataflow.train import checkpoint
from dataflow.train.watch.clock import FIGURES

SAMPLES, BATCH, ACCUMULATE, EPOCHS = 60, 5, 2, 10
HANGING = 60.0  # seconds without a word from a process after which it counts as hanging


@dataclass
class Report:
    """What a campaign found.

    Attributes:
        kills: processes that SIGKILL ended.
        resumes: processes that went on from a checkpoint.
        runs: that came to their end.
        saves: kills that left a half-written file: they fell into a save.
        differences: what wasn't as in the run left alone; nothing of them is expected.
        seconds: of the campaign.
    """

    seed: int
    kills: int = 0
    resumes: int = 0
    runs: int = 0
    saves: int = 0
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0


def model() -> df.Model:
    """Two layers with a batch norm between them."""
    rng = np.random.default_rng(5)
    g = df.GraphBuilder()
    h = ops.matmul(g.input("x", df.float32, ("batch", 12)), _weight(g, rng, "w", (12, 32)))
    ones, zeros = np.ones(32, np.float32), np.zeros(32, np.float32)
    running = [g.initializer(n, a, role="statistic") for n, a in (("mean", zeros), ("variance", ones))]
    h = ops.batch_norm(h, g.parameter("scale", ones), g.parameter("bias", zeros), *running, epsilon=1e-5)
    g.output("y", ops.matmul(ops.relu(h), _weight(g, rng, "v", (32, 4))))
    return df.Model(g.build())


def _weight(g: df.GraphBuilder, rng: np.random.Generator, name: str, shape: tuple[int, int]) -> Any:
    return g.parameter(name, (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32))


def train(folder: Path) -> None:
    """One process of a run: goes on from the checkpoints in ``folder``, and says after each step that it was done."""
    rng = np.random.default_rng(6)
    data = {"x": rng.standard_normal((SAMPLES, 12), np.float32), "labels": rng.integers(0, 4, SAMPLES)}
    trainer = df.Trainer(
        model(), optimizer=df.optim.AdamW(lr=1e-2, schedule="cosine"), batch_norm="update", accumulate=ACCUMULATE,
        devices=["cpu"], threads=1, seed=3,
    )  # fmt: skip
    trainer.fit(
        data, val_split=0.2, epochs=EPOCHS, batch_size=BATCH, checkpoint=folder, every=1, keep=2, resume="auto",
        early_stop=df.EarlyStop(patience=EPOCHS), progress=False,
        callbacks=[lambda event: os.write(1, b".")],
    )  # fmt: skip


def campaign(kills: int, seed: int, folder: Path) -> Report:
    """Runs, kills and compares until there were ``kills`` kills and the run they fell into is done."""
    begun, rng, report = time.monotonic(), random.Random(seed), Report(seed)
    undisturbed = folder / "whole"
    if _process(undisturbed, None) != 0:
        raise RuntimeError("the run left alone failed")
    while report.kills < kills and len(report.differences) < 10:
        run = folder / "run"
        before = report.kills
        while True:
            report.resumes += bool(run.is_dir() and checkpoint.files(run))
            # Uniform over what is left of a run in most processes; some are killed early, some never.
            wait = rng.choice((rng.uniform(0.0, 0.03), rng.uniform(0.0, 0.2))) if report.kills < kills else None
            status = _process(run, wait)
            if status == 0:
                break
            if status != -signal.SIGKILL:
                report.differences.append(f"after {report.kills} kills a process ended with status {status}")
                break
            report.kills += 1
            report.saves += any(path.name.endswith(".part") for path in run.iterdir()) if run.is_dir() else 0
            report.differences += _torn(run)
        report.runs += 1
        report.differences += [f"run of kills {before} to {report.kills}: {d}" for d in _differences(run, undisturbed)]
        shutil.rmtree(run)
    report.seconds = round(time.monotonic() - begun, 1)
    return report


def _process(folder: Path, wait: float | None) -> int:
    """The status of a training process, that is killed ``wait`` seconds after its first step; None: it isn't."""
    code = [sys.executable, "-m", "tests.fuzz.kill_training", "--train", str(folder)]
    with subprocess.Popen(code, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], HANGING)
        if not ready or wait is not None:
            if ready:
                time.sleep(wait or 0.0)
            process.kill()
            return process.wait() if ready else 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=HANGING)
            return process.returncode
        process.kill()
        return 1


def _torn(run: Path) -> list[str]:
    """The checkpoints that are not whole: by their names all should be."""
    found = []
    for path in checkpoint.files(run) if run.is_dir() else ():
        try:
            checkpoint.load(path)
        except df.InputError as error:
            found.append(str(error))
    return found


def _differences(run: Path, undisturbed: Path) -> list[str]:
    """How the last checkpoint of a run differs from that of the run left alone; files that shouldn't be there."""
    litter = [f"left behind: {path.name}" for path in run.iterdir() if path not in checkpoint.files(run)]
    found, expected = (checkpoint.load(checkpoint.files(folder)[-1]) for folder in (run, undisturbed))
    if found.tensors.keys() != expected.tensors.keys():
        return [*litter, f"tensors {sorted(found.tensors.keys() ^ expected.tensors.keys())}"]
    tensors = [name for name, array in expected.tensors.items() if array.tobytes() != found.tensors[name].tobytes()]
    counters = [key for key, value in _timeless(expected).items() if _timeless(found)[key] != value]
    return [*litter, *tensors, *counters]


def _timeless(made: checkpoint.Checkpoint) -> dict[str, Any]:
    """The counters without the seconds that epochs took, as text: nan equals nan there."""
    history = {**made.counters["history"]}
    history["epochs"] = {name: column for name, column in history["epochs"].items() if name not in FIGURES}
    return {key: json.dumps(value) for key, value in {**made.counters, "history": history}.items()}


def main() -> int:
    """Runs a campaign; 1 when anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kill_training", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="of the report; build/fuzz/kills-SEED.json by default")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return 0
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        report = campaign(options.kills, options.seed, Path(folder))
    output = options.output or Path(f"build/fuzz/kills-{options.seed}.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(asdict(report), indent=2) + "\n")
    found = (
        f"{report.kills} kills, {report.saves} of them in a save; {report.resumes} resumes, {report.runs} runs, "
        f"{len(report.differences)} differences, {report.seconds:.0f} s"
    )
    sys.stdout.write("\n".join([found, *report.differences]) + "\n")
    return 1 if report.differences else 0


if __name__ == "__main__":
    sys.exit(main())
