"""Inference of the nine light models against onnxruntime, batch 1, two threads, seeded random weights.

The engines take turns. After a run onnxruntime's threads spin for a while, and on two cores they would take one from
whoever comes next; so each turn begins with a rest and a run that does not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
from report import interleaved, ratio, write

import dataflow as df

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/light"))
from seeded import NAMES, inputs_of, seeded

REST = 0.05  # seconds


def compare(name: str, rounds: int) -> dict[str, object]:
    model, _ = seeded(name)
    (feeds, _) = inputs_of(model)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / f"{name}.onnx")
        Path(path).write_bytes(model.SerializeToString())
        ours = df.Session(df.load(path), devices=["cpu"], threads=2)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 2, 3
        theirs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    runs = {"ours": lambda: ours.run(feeds), "theirs": lambda: theirs.run(None, feeds)}
    for run in runs.values():
        run()

    def timed(run):
        def once() -> float:
            time.sleep(REST)
            run()
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin

        return once

    times = interleaved(rounds, {key: timed(run) for key, run in runs.items()})
    return {
        "what": name,
        "dataflow_ms": float(np.median(times["ours"])) * 1e3,
        "onnxruntime_ms": float(np.median(times["theirs"])) * 1e3,
        "dataflow_min_ms": min(times["ours"]) * 1e3,
        "onnxruntime_min_ms": min(times["theirs"]) * 1e3,
        "ratio": ratio(times["ours"], times["theirs"]),
        **{f"{kind}_MB": ours.plan().memory.get(kind, 0) / 1e6 for kind in ("weights", "packs", "arena")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    write("light", [compare(name, rounds) for name in NAMES], onnxruntime=onnxruntime.__version__)


if __name__ == "__main__":
    main()
