"""Teaches a network that knows the digits 0 to 4 all ten, and writes it back as ONNX."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

import dataflow as df

HERE = Path(__file__).parent


def main() -> None:
    """Fine-tunes, saves and compares; prints accuracy before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="digits10.onnx", help="the file to write")
    options = parser.parse_args()

    data = df.Dataset(str(HERE / "digits.npz"))
    train, validation = data.split(0.2, seed=options.seed)
    model = df.load(str(HERE / "digits5.onnx"))
    model = df.replace_head(model, classes=10, keep=range(5), seed=options.seed)

    steps = options.epochs * math.ceil(len(train) / 64)
    optimizer = df.optim.AdamW(lr=3e-3, weight_decay=0.01, schedule=df.schedules.Cosine(steps))
    with df.Trainer(model, loss="cross_entropy", optimizer=optimizer, seed=options.seed) as trainer:
        before = trainer.evaluate(validation)
        print(f"before: {describe(before)}")
        trainer.fit(train, validation, epochs=options.epochs, batch_size=64)
        after = trainer.evaluate(validation)
        print(f"after:  {describe(after)}")

    df.save(model, options.output, overwrite=True)
    print(f"wrote {options.output}")
    compare(model, options.output, validation)


def describe(figures: dict[str, float]) -> str:
    """Accuracy and loss with their uncertainties, for people."""
    accuracy, error = 100 * figures["accuracy"], 100 * figures["accuracy_error"]
    return f"validation accuracy {accuracy:.2f}% ± {error:.2f}%, loss {figures['loss']:.4f}"


def compare(model: df.Model, path: str, validation: df.Dataset) -> None:
    """Runs the written file in onnxruntime, where it is installed, and prints how the two agree."""
    try:
        import onnxruntime
    except ImportError:
        print("onnxruntime is not installed: no comparison")
        return
    x = np.concatenate([batch.arrays["x"] for batch in validation.batches(256)])
    labels = np.concatenate([batch.arrays["labels"] for batch in validation.batches(256)])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(["logits"], {"x": x})
    ours = model(x)["logits"]
    accuracy = float((theirs.argmax(1) == labels).mean())
    own = float((ours.argmax(1) == labels).mean())
    print(f"onnxruntime on the written file: accuracy {100 * accuracy:.2f}%, dataflow: {100 * own:.2f}%")
    print(f"largest difference between their outputs: {np.abs(ours - theirs).max():.1e}")


if __name__ == "__main__":
    main()
