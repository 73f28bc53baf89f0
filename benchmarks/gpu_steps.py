"""On a card: what the ops of a training step take, beside what ``gpu_model`` predicts for them.

The times are a profile's: events around the kernels of each step, medians over rounds, summed by op. An op's ratio is
its time divided by the prediction, so large ones say where a card is idle; small ones, that operands lay in its cache.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from gpu_kernels import card
from gpu_model import card_of, predict
from gpu_traffic import exported
from gpu_training import NEAR, NETWORKS, batch_of
from report import write

import dataflow as df

LEAST = 0.01  # of the whole; ops that take less are summed


def rows_of(name: str, precision: str, path: str, rounds: int) -> list[dict[str, object]]:
    """The ops of a step, those that take longest first."""
    known = card_of(card())
    optimizer = df.optim.AdamW(lr=1e-3, weight_decay=0.01, no_decay=())
    trainer = df.Trainer(
        df.load(path), optimizer=optimizer, metrics=[], devices=["cuda", "cpu"], precision=precision
    )  # fmt: skip
    batch = batch_of(name)
    trainer.step(batch)
    profiles = trainer.profile(batch, rounds=rounds)
    plans = {key: plan for key, plan in trainer.programs.plans().items() if key.split("-")[0] in profiles}
    predicted = predict(plans, known, precision) if known else {}
    seconds: dict[str, float] = {}
    for profile in profiles.values():
        for row in profile.by_op():
            if row.device == "cuda" and row.op not in ("transfer", "wait"):
                seconds[row.op] = seconds.get(row.op, 0.0) + row.seconds
    trainer.close()
    whole = sum(seconds.values())
    found: list[dict[str, object]] = []
    for op, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        if spent >= LEAST * whole:
            row_ = {"what": f"{name}, {precision}, {op}", "ms": 1e3 * spent, "share": spent / whole}
            if op in predicted:
                row_ |= {"predicted_ms": 1e3 * predicted[op].seconds, "times": spent / predicted[op].seconds}
            found.append(row_)
    least = sum(row.seconds for row in predicted.values())
    total = {"what": f"{name}, {precision}, all steps", "ms": 1e3 * whole, "predicted_ms": 1e3 * least}
    return [total, *found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(NETWORKS), default=["decoder", "resnet50"])
    parser.add_argument("--precision", nargs="*", choices=list(NEAR), default=["bf16"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            exported(name, folder)
            for precision in options.precision:
                found += rows_of(name, precision, str(Path(folder) / f"{name}.onnx"), options.rounds)
    write("gpu_steps", found, card=card())


if __name__ == "__main__":
    main()
