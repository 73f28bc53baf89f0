"""dataflow's side of training_memory.py, in a process of its own; answers as peer.py says.

Arguments: network, folder, threads, and perhaps the memory that a Trainer may take, and how it updates. The folder has
the batch (batch.npz) and the network (model.onnx).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from peer import answer
from works import LARGE, WORKS

import dataflow as df


def main() -> None:
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with np.load(folder / "batch.npz") as file:
        batch = {key: file[key] for key in file.files}
    trainer = df.Trainer(
        df.load(str(folder / "model.onnx")),
        optimizer=df.optim.AdamW(lr=1e-3, weight_decay=0.01, no_decay=()),
        metrics=[],
        devices=["cpu"],
        threads=threads,
        batch_norm=(WORKS | LARGE)[name].batch_norm,
        memory=sys.argv[4] if len(sys.argv) > 4 else None,
        update=sys.argv[5] if len(sys.argv) > 5 else "together",
    )
    answer(df.__version__, lambda: trainer.step(batch))


if __name__ == "__main__":
    main()
